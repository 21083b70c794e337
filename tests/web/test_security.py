"""Who may look, from where, and what a browser is told."""

import asyncio
from io import StringIO
from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, create_engine, event
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from inbox.errors import InvalidOption
from inbox_outbox import web
from inbox_outbox._operating.passwords import Passwords
from inbox_outbox._operating.serving import _behind, _logged_in
from outbox import Refused
from tests.support.browsing import OWN, Visit
from tests.support.cli import error, in_this_process, succeeded
from tests.support.outbox_publishers import Recorder, publish, relay

LINE = f"ann:scrypt:32768:8:3:{'A' * 22}==:{'A' * 43}=:"


def test_nobody_looks_without_a_name(engine: Engine) -> None:
    """Pages, files, events and decisions: without a user the answer is 403, and a name that could not be
    stored with a decision is an error."""
    nobody = Visit(engine, user=None)
    for path in ("/", "/topics", "/static/page.css", "/live", "/nowhere"):
        assert nobody.get(path).status_code == 403, path
    assert nobody.ask("POST", "/decide", headers=OWN).status_code == 403
    with pytest.raises(InvalidOption, match="expected 1 to 255 bytes"):
        Visit(engine, user="").get("/")
    with pytest.raises(InvalidOption, match="'fly' is not an action; expected some of retry"):
        Visit(engine, allow=("fly",)).get("/")


def test_a_user_who_is_awaited(engine: Engine) -> None:
    """The function may be a coroutine."""

    async def user(request: object) -> str | None:
        await asyncio.sleep(0)
        return "ann"

    ann = Visit(engine)
    ann.app = web.app(engine, user=user)
    assert "Nothing needs you." in ann.see("/")


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("localhost.evil.example", 400),
        ("evil.example", 400),
        ("evil.example:localhost", 400),
        ("localhost@evil.example", 400),
        ("[", 400),
        ("", 400),
    ],
)
def test_the_name_of_the_page(sqlite_visit: Visit, host: str, code: int) -> None:
    """Another site's name that points here is refused."""
    assert sqlite_visit.get("/static/page.css", headers={"Host": host}).status_code == code


@pytest.fixture(scope="module")
def sqlite_visit() -> Visit:
    """A page without a database: what is refused is refused before."""
    return Visit(create_engine("sqlite:///nowhere/there.db"), allow=("retry",))


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 400),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://localhost:8000"}, 400),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:8000", "Sec-Fetch-Site": "cross-site"}, 403),
        ({}, 403),
    ],
)
def test_a_form_of_another_site(sqlite_visit: Visit, headers: dict[str, str], code: int) -> None:
    """It is refused; one of ours is read (and here has nothing to do)."""
    sent = {"Content-Type": "application/x-www-form-urlencoded"} | headers
    assert sqlite_visit.ask("POST", "/decide", headers=sent, content=b"do=nothing").status_code == code


def test_what_a_browser_is_told(engine: Engine) -> None:
    """Every answer has the policy, also an error; pages are not kept, files with their version are. There is
    no inline script or style."""
    ann = Visit(engine)
    for path in ("/", "/nowhere", "/topic", "/static/live.js"):
        headers = ann.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    assert Visit(engine, user=None).get("/").headers["content-security-policy"]
    page = ann.get("/").text
    assert " style=" not in page
    assert page.count("<script") == page.count("<script src=") == 1
    file = page.partition('<script src="')[2].partition('"')[0]
    assert "immutable" in ann.get(file).headers["cache-control"]


def test_mounted_in_another_application(engine: Engine) -> None:
    """All addresses begin with the place where it is mounted, and it needs no lifespan events."""
    publish(engine, "a1", topic="mail")
    relay(engine, Recorder({"a1": [Refused("no")]}))
    ann = Visit(engine, allow=("retry",))
    ann.app = Starlette(routes=[Mount("/ops", ann.app)])
    page = ann.get("/ops/").text
    assert 'href="/ops/topics"' in page
    assert ann.get("/ops/topics").status_code == 200
    assert 'data-live="/ops/live"' in page
    group = ann.get("/ops/stopped").text.partition('href="/ops/group?')[2].partition('"')[0]
    done = ann.submit(ann.get("/ops/group?" + group.replace("&amp;", "&")).text, "retry")
    assert done.headers["location"].startswith("/ops/group?")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "192.0.2.1"], "other machines reach it: add --trusted-proxy, and --user-header or"),
        (["--host", "192.0.2.1", "--user-header", "X-User"], "anybody can send it; add --trusted-proxy"),
        (
            ["--host", "192.0.2.1", "--user-header", "X", "--trusted-proxy", "10.0.0.7"],
            "--hostname: expected",
        ),
        (["--host", "192.0.2.1", "--password-file", "x"], "could be read on their way; add --trusted-proxy"),
        (["--password-file", "nowhere"], "--password-file='nowhere': No such file"),
        (["--password-file", "x", "--user-header", "X-User"], "expected one of the two"),
        (["--trusted-proxy", "10.0.0.7"], "--trusted-proxy: expected with --user-header or --password-file"),
        (["--user-header", "X-User", "--trusted-proxy", "proxy"], "'proxy': expected an address"),
        (["--user", ""], "--user: expected the name"),
        (["--allow", "fly"], "--allow='fly': expected retry, discard"),
    ],
)
def test_the_command_refuses_to_be_open(arguments: list[str], said: str) -> None:
    """On an address that other machines reach, only a proxy that it is told of can name users."""
    assert said in error(in_this_process("web", *arguments, url="sqlite:///nowhere.db"))


def test_only_the_proxy_is_believed() -> None:
    """A request that comes from elsewhere, or names two users, has no user."""
    user = _behind("X-User", [ip_network("10.0.0.0/24")])

    def asked(peer: str, *names: str) -> str | None:
        headers = [(b"x-user", name.encode()) for name in names]
        return user(Request({"type": "http", "headers": headers, "client": (peer, 1)}))

    assert asked("10.0.0.7", "ann") == asked("::ffff:10.0.0.7", "ann") == "ann"
    assert asked("10.0.1.7", "ann") is None
    assert asked("10.0.0.7") is None
    assert asked("10.0.0.7", "") is None
    assert asked("10.0.0.7", "root", "ann") is None
    assert asked("/run/socket", "ann") is None


def test_users_with_passwords(
    tmp_path: Path, sqlite_visit: Visit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`password` makes a line of the file, without the password; whoever has typed it is that user, and
    nobody else, or from elsewhere, is."""
    monkeypatch.setattr("sys.stdin", StringIO(f"{RIGHT}\n"))
    line = succeeded(in_this_process("password", "ann", "--allow", "retry"))
    assert line.startswith("ann:scrypt:")
    assert line.endswith(":retry\n")
    assert RIGHT not in line
    file = tmp_path / "users"
    file.write_text(f"# of the night shift\n\n{line}", "utf-8-sig")
    passwords = Passwords.read(file)
    assert passwords.users["ann"].actions == {"retry"}
    visit = Visit(sqlite_visit.engine)
    visit.app = web.app(sqlite_visit.engine, user=_logged_in(passwords, [ip_network("127.0.0.0/8")]))

    def asked(*typed: str) -> int:
        return visit.get("/static/page.css", auth=typed or None).status_code

    assert asked() == 401
    assert visit.get("/").headers["www-authenticate"].startswith("Basic realm=")
    assert asked("ann", "battery staple") == asked("bob", RIGHT) == asked("ann", "") == 401
    assert caplog.text.count("127.0.0.1: a user was refused") == 3
    assert "battery" not in caplog.text
    assert not passwords.remembers("ann", RIGHT)
    assert asked("ann", RIGHT) == 200
    assert passwords.remembers("ann", RIGHT)
    assert asked("ann", RIGHT) == 200
    assert asked("ann", "battery staple") == 401
    visit.app = web.app(sqlite_visit.engine, user=_logged_in(passwords, [ip_network("10.0.0.0/8")]))
    assert asked("ann", RIGHT) == 403


RIGHT = "correct horse"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "it has no users"),
        ("ann:secret\n", "line 1: expected a line of `inbox-outbox password`"),
        (f"{LINE}\n{LINE}\n", "line 2: expected a line of `inbox-outbox password`, and each name once"),
        (LINE.replace("32768", "33554432"), "line 1"),
        (LINE.replace("32768", "32767"), "line 1"),
        (LINE.replace("scrypt", "md5"), "line 1"),
        (LINE + "fly", "--allow='fly': expected retry"),
    ],
)
def test_an_invalid_password_file(tmp_path: Path, given: str, said: str) -> None:
    """It is refused at the start, and nothing of a line is repeated."""
    file = tmp_path / "users"
    file.write_text(given)
    found = error(in_this_process("web", "--password-file", str(file), url="sqlite:///nowhere.db"))
    assert said in found
    assert "secret" not in found


def test_live_events(engine: Engine) -> None:
    """An open page is told at once how things are, and asks the database once in two seconds, however many
    are open."""
    ann = Visit(engine)
    asked: list[int] = []
    event.listen(engine, "checkout", lambda *_: asked.append(1))

    async def listen() -> list[str]:
        return await asyncio.gather(*(first_event(ann.app) for _ in range(20)))

    marks = asyncio.run(listen())
    assert len({*marks}) == 1
    assert marks[0].startswith("data: ")
    assert len(asked) < 6


async def first_event(app: object) -> str:
    """What an open page hears first."""
    heard = asyncio.Queue[str]()
    over = asyncio.Event()

    async def receive() -> dict[str, object]:
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, object]) -> None:
        body = message.get("body")
        if isinstance(body, bytes) and body:
            await heard.put(body.decode())

    request = httpx.Request("GET", "http://localhost/live")
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/live",
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
    }
    page = asyncio.create_task(app(scope, receive, send))  # type: ignore[operator]
    try:
        return await asyncio.wait_for(heard.get(), 30)
    finally:
        over.set()
        await page
