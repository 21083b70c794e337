"""The web page in a real browser: Debian's Chromium, driven by Playwright."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from sqlalchemy import Engine

import outbox
from inbox_outbox import web
from outbox import Refused, Unavailable
from tests.servers import Missing
from tests.support.database import Database
from tests.support.outbox_publishers import Recorder, publish, relay
from tests.support.present import present
from tests.web.test_message import halt
from tests.web.test_pages import PAGES, fill

PROGRAM = shutil.which("chromium-headless-shell")
PHONE = {"width": 375, "height": 700}
NOBODY = "/consumer?name=nobody"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for this file."""
    program = present("chromium", PROGRAM or Missing("there is no program chromium-headless-shell"))
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """A database in which something has happened."""
    engine = postgres.engine()
    fill(engine)
    return engine


@contextmanager
def served(engine: Engine) -> Iterator[str]:
    """The page on a port of this machine; ann may do everything."""
    page = web.app(engine, user=lambda _: "ann", allow=lambda _: web.ACTIONS)
    config = uvicorn.Config(
        page, port=0, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    running = threading.Thread(target=server.run)
    running.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        running.join()


@contextmanager
def opened(browser: Browser, **options: object) -> Iterator[tuple[Page, list[str]]]:
    """A page, and everything that the browser complains about."""
    context: BrowserContext = browser.new_context(**options)  # type: ignore[arg-type]
    context.set_default_timeout(20_000)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        yield page, said
    finally:
        context.close()


def test_no_page_displeases_a_browser(browser: Browser, engine: Engine) -> None:
    """No page, in light or dark, has a message in the console, breaks its own policy, or is wider than a
    telephone, and axe finds nothing that keeps somebody from using it."""
    halt(engine, "a")
    with served(engine) as at, opened(browser, viewport=PHONE, reduced_motion="reduce") as (page, said):
        pages = [*PAGES, "/message?q=a", NOBODY]
        page.goto(f"{at}/stopped")
        pages += [link.get_attribute("href") or "" for link in page.locator("tbody a").all()]
        for path in pages:
            answer = page.goto(at + path)
            assert answer is not None
            assert answer.status < 400 or path == NOBODY, path
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            assert faults(page) == [], path
        assert [each for each in said if "404" not in each] == []


def faults(page: Page) -> list[tuple[str, str, str]]:
    """What axe finds in a page, in light and, as far as it can differ, in dark: the rule, and the element."""
    page.emulate_media(color_scheme="light")
    found = [("light", each) for each in Axe().run(page).response["violations"]]
    page.emulate_media(color_scheme="dark")
    again = page.evaluate("axe.run({runOnly: ['color-contrast', 'link-in-text-block']})")
    found += [("dark", each) for each in again["violations"]]
    return [(scheme, each["id"], node["html"]) for scheme, each in found for node in each["nodes"]]


def test_a_page_is_live(browser: Browser, engine: Engine) -> None:
    """A message that dies appears without a reload; a hidden tab asks for nothing; and the retry of what was
    shown, all by keyboard, leaves what died meanwhile."""
    with served(engine) as at, opened(browser) as (page, said):
        page.goto(at)
        page.evaluate("window.mine = true")
        expect(page.get_by_text("of the outbox is dead")).to_have_text(
            "1 message of the outbox is dead (sms)"
        )
        die(engine, "e1")
        expect(page.get_by_text("2 messages of the outbox are dead")).to_be_visible()
        assert page.evaluate("window.mine")
        expect(page.locator("#live")).to_have_text("live")

        hide(page, hidden=True)
        expect(page.locator("#live")).to_have_text("paused")
        die(engine, "f1")
        page.wait_for_timeout(300)
        expect(page.get_by_text("2 messages of the outbox are dead")).to_be_visible()
        hide(page, hidden=False)
        expect(page.get_by_text("3 messages of the outbox are dead")).to_be_visible()

        page.goto(f"{at}/stopped")
        press(page, "no mailbox #", "Enter")
        expect(page.get_by_role("heading", name="no mailbox #")).to_be_visible()
        die(engine, "g1")
        press(page, "Retry all 2", "Enter")
        expect(page.get_by_role("status").first).to_contain_text("2 messages were retried.")
        left = [each.key for each in outbox.peek(engine, state="dead", topic="sms")]
        assert "g" in left
        assert not {"e", "f"} & {*left}
        assert said == []


def die(engine: Engine, name: str) -> None:
    """A message becomes a dead letter; the others still are not taken."""
    publish(engine, name, topic="sms")
    relay(engine, Recorder(lambda each: Refused("no mailbox 7") if each.topic == "sms" else FULL))


FULL = Unavailable("the queue is full", 3_600.0)


def hide(page: Page, *, hidden: bool) -> None:
    """Another tab is in front, or this one again."""
    page.evaluate(
        "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


def press(page: Page, name: str, key: str) -> None:
    """Go to a link or a button of this name with the tabulator key, and press a key."""
    for _ in range(100):
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.textContent.trim()")
        if focused == name:
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            page.keyboard.press(key)
            return
    pytest.fail(f"the keyboard does not reach {name!r}")


def test_without_javascript_and_from_elsewhere(browser: Browser, engine: Engine) -> None:
    """Every step works without JavaScript. A form on another site is refused."""
    with served(engine) as at, opened(browser, java_script_enabled=False) as (page, _):
        page.goto(at)
        page.get_by_role("link", name="Stopped").click()
        page.get_by_role("link", name="no <script>").first.click()
        page.get_by_role("checkbox").first.check()
        page.get_by_label("Why").fill("nobody needs it")
        page.get_by_role("button", name="Drop ticked").click()
        expect(page.get_by_role("heading")).to_have_text("Drop 1 message?")
        page.get_by_role("button", name="Drop").click()
        expect(page.get_by_role("status").first).to_contain_text("1 message was dropped.")
        decided = [(each.by, each.why) for each in outbox.decisions(engine)]
        assert decided[0] == ("ann", "nobody needs it")
        form = f'<form method="post" action="{at}/decide"><button name="do" value="pause">Win</button>'
        html = f'{form}<input name="of" value="orders"></form>'
        page.route("http://evil.example/", lambda route: route.fulfill(content_type="text/html", body=html))
        page.goto("http://evil.example/")
        with page.expect_response("**/decide") as answer:
            page.get_by_role("button").click()
        assert answer.value.status == 403
        assert len(outbox.decisions(engine)) == len(decided)
