"""The charts of the last hours, read without a browser."""

import re
from datetime import datetime, timedelta

from sqlalchemy import Engine, insert, text

from inbox import Inbox
from inbox.schema import tables
from inbox_outbox_base.databases.taking_statements import clock
from tests.support.browsing import Visit
from tests.support.database import Database

MINUTE = tables().minute
PATH = re.compile(r'<g class="(\w+)"><path class="area" d="([^"]*)"/><path d="([^"]*)"/></g>\n')


def count(engine: Engine, *rows: tuple[int, str, str, int]) -> None:
    """Numbers of some minutes ago: which kind, of which topic or consumer, how many."""
    with engine.begin() as connection:
        now: datetime = connection.execute(clock()).scalar_one()
        this = now.replace(second=0, microsecond=0)
        for ago, kind, name, number in rows:
            at = this - timedelta(minutes=ago)
            given = {"minute": at, "source": "a", "kind": kind, "name": name, "number": number}
            connection.execute(insert(MINUTE), given)


def lines(page: str) -> list[str]:
    """The lines of all plots, each moved to the left edge: `M0 0` is the top of its first interval."""
    return [moved(path) for _, _, path in PATH.findall(page)]


def moved(path: str) -> str:
    """The path from 0."""
    first = int((re.search(r"\d+", path) or ["0"])[0])
    return re.sub(r"([MH])(\d+)", lambda each: f"{each[1]}{int(each[2]) - first}", path)


def test_what_is_drawn(sqlite: Database) -> None:
    """Each number is a step of its interval, as high as its share of the highest; where nobody has counted
    there is nothing, which is not 0. The highest number is said, and all of them are in a table."""
    engine = sqlite.engine()
    count(engine, (9, "sent", "mail", 70), (9, "sent", "orders", 50), (7, "sent", "mail", 30))
    count(engine, (7, "accepted", "billing", 90), (6, "pending", "", 6_400), (7, "dead", "billing", 1))
    ann = Visit(engine)
    page = ann.get("/").text
    sent = "M0 0V0H1M2 75V75H3V100H4"
    stopped = "M0 100V100H1M2 0V0H3V100H4"
    assert lines(page) == [sent, "M0 25V25H1", "M0 100V100H1M2 100V100H3V100H4", stopped, "M0 0V0H1", ""]
    seen = ann.see("/")
    assert "sent max 120/min taken max 90/min" in seen
    assert "failed none dead or halted max 1" in seen
    assert "pending max ~6,400 oldest not counted" in seen
    assert re.search(r"\d\d:\d\d 30 90 0 1 – – (\d\d-\d\d )?\d\d:\d\d 120 – 0 0 – –", seen)  # noqa: RUF001 - a dash
    assert "style=" not in page
    count(engine, (8, "mismatch", "billing", 3))
    with engine.begin() as connection:
        Inbox("billing").accept(connection, "a")
    assert "too old none mismatches max 3" in Visit(engine).see("/consumer", name="billing")
    mail = ann.get("/topic?name=mail&span=24h").text
    assert "Failures in 10 min" in mail
    assert 'href="?name=mail&amp;span=7d"' in mail
    assert next(each for each in lines(mail) if each).startswith("M0 ")
    assert len(re.findall('viewBox="0 0 144 100"', mail)) == 2
    assert "There are no numbers of this time." in ann.see("/topic", name="nobody")
    assert 'viewBox="0 0 60 100"' in ann.get("/", params={"span": "1 year"}).text


def test_an_interval_that_has_just_begun(sqlite: Database) -> None:
    """It has a number a minute, as it is so far, when it is 15 s old; a failure is there at once."""
    count(sqlite.engine(), (0, "sent", "mail", 7), (0, "refused", "mail", 2))
    page = Visit(sqlite.engine()).see("/")
    sent = re.search(r"sent max (\d+)/min", page)
    assert sent is None or 7 <= int(sent[1]) <= 4 * 7
    assert "failed max 2" in page
    assert "In the outbox" not in page


def test_without_the_table(sqlite: Database) -> None:
    """A line says so, and everything else is there."""
    with sqlite.engine().begin() as connection:
        connection.execute(text("DROP TABLE ops_minute"))
    ann = Visit(sqlite.engine())
    overview = ann.see("/")
    assert overview.count("Not seen: ") == 1
    assert "ops_minute" in overview
    assert "No message waits in the outbox." in overview
    assert "No message of this topic waits." in ann.see("/topic", name="mail")
