"""Makes the pictures of docs/web.md and docs/operate.md, one of each page: `python -m tests.web.pictures`."""

from datetime import UTC, datetime, timedelta
from math import sin
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import sync_playwright
from sqlalchemy import Engine, create_engine, insert, update

import outbox
from examples.embedded_postgres import EmbeddedPostgres
from inbox import Inbox, SqlStore, StatusInbox
from inbox._refusing import recording
from inbox.schema import tables
from outbox import Accepted, Envelope, Outbox, Outcome, Refused, Relay, Unavailable
from tests.support.database import make_tables
from tests.support.outbox_publishers import TABLES, Recorder
from tests.support.program import ROOT
from tests.web.test_browser import PROGRAM, served
from tests.web.test_message import halt

PICTURES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topic?name=orders",
    "stopped": "/stopped",
    "group": "/stopped",
    "message": "/message?q=order-1",
    "consumers": "/consumers",
    "consumer": "/consumer?name=billing",
    "relays": "/relays",
    "decisions": "/decisions",
}
LINKS = {"group": "a[href*='group?']"}
"""What to follow on a page."""
COLORS = 128


def answer(message: Envelope) -> Outcome:
    """A broker on a bad day."""
    number = int(message.id[-2:], 16)
    if message.topic == "mail":
        return Refused(f"550 mailbox {number} is full" if number % 3 else "501 no such recipient")
    if message.topic == "orders" and message.key in ("order-1", "order-4"):
        return Unavailable("queue 'orders' is full", 900.0)
    return Accepted()


def happen(engine: Engine) -> None:
    """What the pictures show."""
    publish(engine, "orders", 30)
    publish(engine, "mail", 12)
    Relay(engine, Recorder(answer)).run_once()
    publish(engine, "orders", 40)
    publish(engine, "invoices", 7)
    outbox.pause(engine, "invoices", by="ann", why="the invoice service is being moved")
    store, now = SqlStore(engine), datetime.now(UTC)
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(created_at=now - timedelta(minutes=47)))
        relay = {"epoch": 7, "name": "shop-1:4711", "lease_until": now + timedelta(minutes=5)}
        connection.execute(insert(TABLES.relay), relay | {"generation": 1})
        connection.execute(update(TABLES.bucket).values(epoch=7))
        billing = Inbox("billing", record_refusals="always")
        for number in range(200):
            billing.accept(connection, f"order-{number}", f"{number} EUR")
        for number in range(3):
            billing.accept(connection, f"order-{number}", f"{number + 1} EUR")
    recording.flush()
    shipping = StatusInbox("shipping", store=store, max_attempts=1)
    for number in range(3):
        with pytest.raises(ValueError, match="no address"), shipping.claim(f"order-{number}"):
            raise ValueError(f"no address for order {number}")
    halt(engine, "order-1")


def pass_an_hour(engine: Engine) -> None:
    """An hour by the minute: for a while no relay ran, then some topics became slow."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    rows = []
    for ago in range(1, 60):
        slow = max(0, 20 - ago)
        sent = round((600 + 60 * sin(ago / 4) + 35 * sin(ago)) * (0.55 if slow else 1))
        numbers = {"pending": 9 + ago % 4 + 2 * slow, "oldest": 1 + 150 * slow, "accepted": round(0.8 * sent)}
        numbers |= {"sent": sent, "unavailable": slow % 4, "died": int(slow % 7 == 3)}
        if not 31 < ago < 37:
            given = {"minute": now - timedelta(minutes=ago), "source": "", "name": ""}
            rows += [given | {"kind": kind, "number": number} for kind, number in numbers.items()]
    with engine.begin() as connection:
        connection.execute(insert(tables().minute), rows)


def publish(engine: Engine, topic: str, count: int) -> None:
    """Messages of nine orders."""
    with engine.begin() as connection:
        for number in range(count):
            Outbox().publish(connection, topic, {"order": number}, key=f"order-{number % 9}")


def main() -> None:
    """Make them."""
    with EmbeddedPostgres({}) as server, sync_playwright() as playwright:
        make_tables(server.url)
        engine = create_engine(server.url)
        happen(engine)
        pass_an_hour(engine)
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1080, "height": 700})
        with served(engine) as at:
            for name, path in PICTURES.items():
                page.goto(at + path)
                if name in LINKS:
                    page.locator(LINKS[name]).first.click()
                page.get_by_text("does not answer").wait_for(state="hidden")  # as if the machine is busy
                page.wait_for_timeout(500)
                save(page.screenshot(), ROOT / "docs" / f"web-{name}.png")
        browser.close()
        engine.dispose()


def save(picture: bytes, path: Path) -> None:
    """In few colors, so that it is small."""
    path.write_bytes(picture)
    whole = Image.open(path).convert("RGB")
    whole.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
