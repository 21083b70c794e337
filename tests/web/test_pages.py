"""The pages, read without a browser."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

import inbox
import outbox
from inbox import Inbox, SqlStore, StatusInbox
from inbox._refusing import recording
from inbox.errors import InvalidOption, StoreUnreachable
from inbox_outbox import web
from inbox_outbox.web import _pulse, _sites
from inbox_outbox.web._sites import Site
from inbox_outbox_base.checks.keys import digest
from inbox_outbox_base.errors import codes
from outbox import Refused, Unavailable
from tests.support.browsing import SCRIPT, Visit, seen
from tests.support.database import Database
from tests.support.outbox_publishers import Recorder, publish, relay
from tests.support.reads import recorded
from tests.support.roles import Right, rights, role

PAGES = (
    "/",
    "/topics",
    "/topic?name=mail",
    "/stopped",
    "/consumers",
    "/consumer?name=orders",
    "/relays",
    "/decisions",
)


def fill(engine: Engine) -> None:
    """A dead, a waiting and a paused message in the outbox; keys and a dead message in the inbox."""
    publish(engine, "a1", topic="sms")
    publish(engine, "b1", "b2", topic="mail")
    relay(
        engine, Recorder({"a1": [Refused(f"no {SCRIPT}")], "b1": [Unavailable("the queue is full", 3_600.0)]})
    )
    publish(engine, "c1", topic=SCRIPT)
    outbox.pause(engine, SCRIPT, by="ann", why="the printer burns")
    with engine.begin() as connection:
        billing = Inbox("billing", record_refusals="always")
        billing.accept_many(connection, ["a", SCRIPT], [b"1", b"1"])
        billing.accept(connection, SCRIPT, b"2")
    recording.flush()
    orders = StatusInbox("orders", store=SqlStore(engine), max_attempts=1)
    with pytest.raises(ValueError, match="no"), orders.claim(SCRIPT):
        raise ValueError(f"no address {SCRIPT}")


def test_what_the_pages_show(migrated: Database) -> None:
    """On each database: what needs somebody comes first; each topic, consumer and decision has its place. A
    script in a topic, key or error is text."""
    engine = migrated.engine()
    fill(engine)
    ann = Visit(engine)
    overview = ann.see("/")
    assert overview.startswith("Overview 1 message of the outbox is dead (sms).")
    assert "1 message of status-table mode is dead (orders)." in overview
    assert f"no {SCRIPT}" in overview
    topics = ann.see("/topics")
    assert "the queue is full" in topics
    assert f"{SCRIPT} paused" in topics
    topic = ann.see("/topic", name="mail")
    assert topic.index("waiting again in") < topic.index("pending")
    assert f"no {SCRIPT}" in ann.see("/topic", name="sms")
    paused = ann.see("/topic", name=SCRIPT)
    assert "It is paused since" in paused
    assert "by ann: the printer burns" in paused
    assert "billing" in ann.see("/consumers")
    assert f"no address {SCRIPT}" in ann.see("/consumer", name="orders")
    assert "Last purge none is recorded" in ann.see("/consumer", name="billing")
    stopped = "1 message of keys that were taken with another payload was refused within a day (billing)."
    assert stopped in overview
    assert f'<a href="/consumer?name=billing">{stopped[:-1]}' in ann.get("/").text
    billing = ann.see("/consumer", name="billing")
    assert f"{SCRIPT} mismatch 1" in billing
    assert "{}, stored {}".format(*(digest(each).hex() for each in (b"2", b"1"))) in billing  # type: ignore[union-attr]
    assert "Refused messages" not in ann.get("/consumer", params={"name": "orders"}).text
    assert "No relay is running" in ann.see("/relays")
    assert f"ann outbox.pause topic {SCRIPT} 1 the printer burns" in ann.see("/decisions")
    assert ann.get("/consumer", params={"name": "nobody"}).status_code == 404


def test_an_empty_database(engine: Engine) -> None:
    """Nothing needs anybody, and each page says that there is nothing."""
    ann = Visit(engine)
    assert "Nothing needs you." in ann.see("/")
    for page in PAGES:
        assert ann.get(page).status_code == (404 if page.startswith("/consumer?") else 200), page


def test_no_transaction_of_a_page_can_write(migrated: Database) -> None:
    """Whatever a page asks, on each database its transaction is read-only, and the session of the engine's
    pool is afterwards as it was."""
    engine = migrated.engine(pool_size=1, max_overflow=0)
    site = Site(None, engine, (), None)
    change = text("UPDATE outbox_bucket SET epoch = NULL")
    with pytest.raises(Exception, match=r"(?i)read.?only"), site.reading.begin() as connection:
        connection.execute(change)
    with engine.begin() as connection:
        connection.execute(change)


def test_a_statement_that_takes_too_long(engine: Engine) -> None:
    """After two seconds the server ends it, it is not tried again, and the page shows the rest."""
    publish(engine, "a1", topic="mail")
    relay(engine, Recorder({"a1": [Refused("no")]}))
    ann = Visit(engine)
    ann.see("/")
    with engine.begin() as connection:
        connection.execute(text("LOCK outbox_dead"))
        with recorded(engine) as statements:
            topic = ann.see("/topic", name="mail")
    assert len([each for each, _ in statements if "FROM outbox_dead" in each]) == 1
    assert "Not seen: what takes longer than 2 s to read" in topic
    assert "Dead 1" in topic


def test_each_database_ends_what_takes_too_long(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement on each database; a listing of status-table mode, or a search by id, is not tried again."""
    monkeypatch.setattr(_sites, "SECONDS", 0.2)
    engine = migrated.engine()
    site = Site(None, engine, (), None)
    every = ", ".join(f"outbox_bucket AS b{number}" for number in range(6))  # together 69 billion rows
    with pytest.raises(DBAPIError) as ended, site.reading.begin() as connection:
        connection.execute(text(f"SELECT sum(b0.bucket + b5.bucket) FROM {every}"))
    assert codes.is_limited(ended.value)
    if migrated.name == "postgresql":
        with engine.begin() as connection, recorded(engine) as statements:
            connection.execute(text("LOCK inbox_status, outbox_message"))
            with pytest.raises(StoreUnreachable):
                inbox.list_messages(site.records[0], status="dead")
            with pytest.raises(DBAPIError):
                outbox.trace(site.reading, message_id="x")
        assert len([each for each, _ in statements if "FROM inbox_status" in each]) == 1
        assert len([each for each, _ in statements if "FROM outbox_message" in each]) == 1


def test_a_database_that_hangs(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page waits for some seconds, and then says so; it is not asked again meanwhile."""
    monkeypatch.setattr(_pulse, "_PATIENCE", 0.2)
    ann = Visit(engine)
    with engine.begin() as connection:
        connection.execute(text("LOCK inbox_consumer"))
        found = ann.get("/")
    assert found.status_code == 503
    assert "the database has not answered for 0 s" in seen(found)


def test_one_half_is_late(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page says so, and shows the rest; a page about it says just that. So it is while the server has
    not ended the statement."""
    monkeypatch.setattr(_sites, "SECONDS", 0.5)
    with engine.begin() as connection:
        Inbox("billing").accept(connection, "a")
    ann = Visit(engine)
    late = "The outbox was not read in time, and is left out."
    with engine.begin() as connection:
        connection.execute(text("LOCK outbox_bucket"))
        overview = ann.get("/")
        assert overview.status_code == 200
        assert f"{late} Overview Nothing needs you in what was read." in seen(overview)
        assert "billing" in seen(overview)
        assert late in ann.see("/message", q="a")
        for page in ("/topics", "/topic?name=mail", "/relays"):
            found = ann.get(page)
            assert found.status_code == 503
            assert "It was not read in time" in seen(found)
    with engine.begin() as connection:
        connection.execute(text("LOCK inbox_consumer"))
        ann = Visit(engine)
        assert "The inbox was not read in time" in ann.see("/")
        assert ann.get("/consumers").status_code == 503
    monkeypatch.setattr(_sites, "SECONDS", 4.0)
    monkeypatch.setattr(_pulse, "_PATIENCE", 2.0)
    with engine.begin() as connection:
        connection.execute(text("LOCK outbox_bucket"))
        assert f"{late} Overview" in Visit(engine).see("/")


def test_the_database_is_away(postgres: Database) -> None:
    """Every page says so, and shows its numbers once the database answers again."""
    engine = postgres.engine()
    publish(engine, "a1", topic="mail")
    ann = Visit(engine)
    with renamed(postgres):
        for page in PAGES:
            found = ann.get(page)
            assert found.status_code == 503, page
            assert "The database does not answer" in seen(found)
            assert 'data-live="/live"' in found.text
    end = time.monotonic() + 30
    while ann.get("/").status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "mail" in ann.see("/")


@contextmanager
def renamed(database: Database) -> Iterator[None]:
    """While the database has another name, nobody can connect to it."""
    name = database.url.database
    database.dispose()
    admin = database.engine_at(database.url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {name} RENAME TO {name}_away"))
        yield
        connection.execute(text(f"ALTER DATABASE {name}_away RENAME TO {name}"))


def test_a_role_that_may_only_look(postgres: Database) -> None:
    """With the rights of `look`, every page is shown; what else it would need is named."""
    publish(postgres.engine(), "a1", topic="mail")
    with role(postgres) as app:
        for right in rights("postgresql", "look"):
            app.grant(right)
        database = app.database
        ann = Visit(database.engine())
        for page in PAGES:
            assert ann.get(page).status_code == (404 if page.startswith("/consumer?") else 200), page
        assert "Not seen: permission denied for table ops_decision" in ann.see("/decisions")
        message = ann.see("/message", q="a")
        assert "No relay is running." in message
        assert "Not seen: permission denied for table outbox_sent" in message
        assert "There are no numbers of this time." in ann.see("/")
        app.revoke(Right("SELECT", "ops_minute"))
        unseen = Visit(database.engine()).see("/")
        assert unseen.count("Not seen: permission denied for table ops_minute") == 1
        assert "mail 1" in unseen
        app.revoke(Right("SELECT", "outbox_message"))
        assert "permission denied for table outbox_message" in Visit(database.engine()).see("/")
        database.dispose()


def test_several_databases(postgres: Database, sqlite: Database) -> None:
    """A mapping has a list of what needs somebody in each database, and each has its own pages. One that does
    not answer takes no other one with it."""
    publish(postgres.engine(), "a1", topic="mail")
    relay(postgres.engine(), Recorder({"a1": [Refused("no")]}))
    gone = postgres.engine_at(postgres.url.set(database="nowhere"))
    ann = Visit({"shop": postgres.engine(), "depot": sqlite.engine(), "gone": gone})
    found = ann.see("/")
    assert 'FATAL: database "nowhere" does not exist' in found.partition(" gone ")[2]
    assert ann.get("/gone/").status_code == 503
    assert "shop 1 message of the outbox is dead (mail)" in found
    assert "depot nothing" in found
    assert "1 message of the outbox is dead" in ann.see("/shop/")
    assert "Nothing needs you." in ann.see("/depot/")
    assert 'href="/depot/topics"' in ann.get("/depot/").text
    assert ann.get("/nowhere/").status_code == 404


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "sqlite://"}, "engine=str: expected an Engine"),
        ({"engine": {"a/b": None}}, "'a/b': expected 1 to 64 letters"),
        ({"user": None}, "user=None: expected a function"),
        ({"allow": "retry"}, "allow='retry': expected a function"),
        ({"show": True}, "show=True: expected a function"),
        ({"hosts": "ops.example.com"}, "hosts='ops.example.com': expected names"),
        ({"stores": ["redis"]}, "stores: 'redis': expected RedisStores"),
    ],
)
def test_invalid_options(sqlite: Database, options: dict[str, object], said: str) -> None:
    """Each is refused by name."""
    given: dict[str, object] = {"engine": sqlite.engine(), "user": lambda _: "ann"} | options
    with pytest.raises(InvalidOption) as error:
        web.app(given.pop("engine"), **given)  # type: ignore[arg-type]
    assert said in str(error.value)


def test_nobody_pays_for_it() -> None:
    """`import inbox_outbox` loads neither Starlette nor Jinja2; the page needs nothing of the commands."""
    code = (
        "import sys, inbox_outbox; print(sorted({'starlette', 'jinja2'} & {*sys.modules}));"
        "import inbox_outbox.web; print(sorted({'typer', 'rich', 'uvicorn'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"
