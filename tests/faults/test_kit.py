"""What the fault kit takes, what it refuses, and the faults that need more than one simple handler."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from examples.embedded_postgres import EmbeddedPostgres
from inbox_outbox import faults
from inbox_outbox.faults import FaultKind, UnusableHandler, ViolationKind, exactly_once
from inbox_outbox.faults._plan import plan, sample
from inbox_outbox.faults._stage import Spot, SpotKind, Stage
from tests import servers
from tests.servers import Server
from tests.support.database import Database, make_tables
from tests.support.faults.shop import Shop, messages
from tests.support.on_servers import each_on, on

RIGHT = "tests.support.faults.right_handlers"

PLAIN = """
import os, threading
import psycopg

URL = os.environ["SHOP_URL"].replace("+psycopg", "")

def connected():
    return psycopg.connect(URL)

def raises(message):
    raise KeyError("no")

def connects_elsewhere(message):
    pass

def draws(message):
    with connected() as connection:
        connection.execute("INSERT INTO bill VALUES (gen_random_uuid()::text, 1)")

def does_nothing(message):
    connected().close()

def insists(message):
    with connected() as connection:
        connection.execute("INSERT INTO seen VALUES (%s)", [message["order"]])
        connection.execute("INSERT INTO bill VALUES (%s, 500)", [message["order"]])

def expects_order(message):
    with connected() as connection:
        if message["what"] == "made":
            if not connection.execute("SELECT 1 FROM bill WHERE id = %s", [message["order"]]).fetchone():
                connection.execute("INSERT INTO bill VALUES (%s, 500)", [message["order"]])
        else:
            connection.execute("UPDATE bill SET cents = 0 WHERE id = %s", [message["order"]])
"""
OPENS = """
import os, psycopg

connection = psycopg.connect(os.environ["SHOP_URL"].replace("+psycopg", ""), autocommit=True)

def bill(message):
    connection.execute("INSERT INTO bill VALUES (%s, 500)", [message["order"]])
"""
THREAD = """
import queue, threading
import plain_handlers

tasks = queue.Queue()

def work():
    while True:
        message, done = tasks.get()
        with plain_handlers.connected() as connection:
            connection.execute("INSERT INTO bill VALUES (%s, 500)", [message["order"]])
        done.set()

threading.Thread(target=work, daemon=True).start()

def bill(message):
    done = threading.Event()
    tasks.put((message, done))
    done.wait()
"""


@pytest.fixture
def shop(migrated: Database) -> Shop:
    """A shop, on each server in turn."""
    return Shop(migrated)


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of handlers that is loaded fast."""
    (tmp_path / "plain_handlers.py").write_text(PLAIN)
    (tmp_path / "opens_early.py").write_text(OPENS)
    (tmp_path / "has_a_thread.py").write_text(THREAD)
    monkeypatch.syspath_prepend(tmp_path)
    return "plain_handlers"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "secret@host/database"}, "url: expected the text of a URL"),
        ({"url": "oracle://scott:secret@host/database"}, "url: 'oracle' is none of postgresql"),
        ({"url": "postgresql://me:secret@/database"}, "url: it names no host"),
        ({"handler": lambda message: message}, "handler: expected a function at the top of its module"),
        ({"handler": "shop.bill"}, "handler: expected module:function, got 'shop.bill'"),
        ({"only": ["killed", "drowned"]}, "only: 'drowned' is not a valid FaultKind; there are: killed, "),
        ({"lease": 0}, "lease: expected more than 0 and at most 3600 seconds, got 0"),
        ({"limit": 0}, "limit: expected at least 1, got 0"),
        ({"effects": 5}, "effects: expected a function, got 5"),
    ],
)
def test_invalid_options(options: dict[str, Any], said: str) -> None:
    """Bad input is refused by the option's name and the value, before a process starts. A password is not
    repeated."""
    given: dict[str, Any] = {
        "handler": "a:b",
        "messages": messages,
        "url": "sqlite:///a.db",
        "effects": Counter,
    } | options
    with pytest.raises((ValueError, TypeError), match="^" + said.replace("+", r"\+")) as caught:
        exactly_once(**given)
    assert "secret" not in str(caught.value)


@on("postgresql")
def test_what_cannot_be_tried(shop: Shop, plain: str) -> None:
    """A handler that says nothing about exactly once is refused with the reason."""
    for name, said in {
        "missing": "cannot be loaded",
        "raises": "without any fault, it ended with KeyError: 'no'",
        "connects_elsewhere": "it counts nothing",
        "does_nothing": "it counts nothing",
        "draws": "runs without a fault differ",
    }.items():
        with pytest.raises(UnusableHandler, match=said):
            shop.under_faults(f"{plain}:{name}")
    with pytest.raises(UnusableHandler, match=r"only: none of these can be tried: .*lease= is not given"):
        shop.under_faults(f"{plain}:insists", only=["lease lost"])
    with pytest.raises(TypeError, match="messages: they cannot be passed to a process: "):
        shop.under_faults(f"{plain}:insists", messages=lambda run: [(run, threading.Lock())])
    elsewhere = {"environ": {"SHOP_URL": shop.url.replace("127.0.0.1", "localhost")}}
    with pytest.raises(UnusableHandler, match=r"opened no connection to 127\.0\.0\.1.*setdefault"):
        shop.under_faults(f"{plain}:insists", **elsewhere)


@each_on("postgresql", "handler", ["by_hand", "asynchronous"], 2, among=("mariadb",))
def test_another_database_of_the_server(
    shop: Shop, server: Server, handler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where variables name another database than `url`, nothing reaches that one, and the error names both,
    unless the caller has said that the handler may work there."""
    database = Database(server, server.new_database())
    make_tables(database.url)
    other = Shop(database)
    for name, value in other.environ.items():
        monkeypatch.setenv(name, value)
    names = [make_url(each.url).database for each in (shop, other)]
    said = "it names the database {!r}, but the handler asked for {!r}, which SHOP_ASYNC_URL and SHOP_URL in"
    with pytest.raises(UnusableHandler, match=said.format(*names)):
        exactly_once(f"{RIGHT}:{handler}", messages, url=shop.url, effects=shop.bills)
    assert other.bills() == Counter()
    with pytest.raises(UnusableHandler, match="it counts nothing"):
        shop.under_faults(f"{RIGHT}:{handler}", environ=other.environ)
    assert other.bills() != Counter()
    database.close()


@on("postgresql")
def test_a_message_that_is_never_answered(shop: Shop, plain: str) -> None:
    """A handler that raises for every duplicate is reported: the broker keeps the message for ever."""
    report = shop.under_faults(f"{plain}:insists", only=["delivered twice"])
    [found] = report.violations
    assert found.kind is ViolationKind.STUCK
    assert found.effect.startswith("UniqueViolation: ")
    assert report.not_tried == {}


@on("postgresql")
def test_messages_that_depend_on_each_other(shop: Shop, plain: str) -> None:
    """The messages of a run come in another order, too."""

    def two(run: int) -> list[dict[str, str]]:
        return [{"order": f"order-{run}", "what": what} for what in ("made", "cancelled")]

    kinds = ["delivered out of order", "killed"]
    report = shop.under_faults(f"{plain}:expects_order", messages=two, only=kinds)
    assert report.tried[FaultKind.KILLED] == 10
    assert {(each.kind, each.effect, each.fault) for each in report.violations} == {
        (ViolationKind.LOST, "('order-{run}', 0)", FaultKind.OUT_OF_ORDER),
        (ViolationKind.ADDED, "('order-{run}', 500)", FaultKind.OUT_OF_ORDER),
    }


@on("postgresql")
def test_what_the_import_begins(shop: Shop, plain: str) -> None:
    """Processes do not share a connection that the import opens, and they have the threads that it starts:
    each imports the handler for itself."""
    assert plain
    report = shop.under_faults("has_a_thread:bill", only=["acknowledgement lost"], limit=1)
    assert report.tried == {FaultKind.ACK_LOST: 1}
    report = shop.under_faults("opens_early:bill", only=["killed", "delivered twice at once"])
    assert {each.fault for each in report.violations} == {FaultKind.KILLED, FaultKind.AT_ONCE}


@on("sqlite")
def test_sqlite(shop: Shop) -> None:
    """There the handler's marks are all that is seen, and the report says what is not tried."""
    report = shop.under_faults(f"{RIGHT}:by_hand")
    assert report.violations == ()
    assert (report.tried[FaultKind.KILLED], report.tried[FaultKind.AT_ONCE]) == (2, 2)
    assert {name for name in report.not_tried if "SQLite" in report.not_tried[name]} == {
        "connection cut",
        "answer lost",
        "database restarted",
    }
    unmarked = shop.under_faults(f"{RIGHT}:transaction")
    assert "the handler marks no point and no effect" in unmarked.not_tried["killed"]


@pytest.mark.long
def test_a_server_that_crashes(private_postgres: EmbeddedPostgres) -> None:
    """If it may be restarted, it crashes before COMMIT and after it; that is all that this handler's
    process notices of the others."""
    server = servers.find("postgresql")
    assert isinstance(server, Server)
    shop = Shop(Database(server, private_postgres.url))
    report = shop.under_faults(
        f"{RIGHT}:transaction", restart=private_postgres.restart, only=["database restarted"]
    )
    assert (report.tried, report.violations) == ({FaultKind.RESTARTED: 2}, ())
    wrong = "tests.support.faults.wrong_handlers:claims_first"
    report = shop.under_faults(wrong, restart=private_postgres.restart, only=["database restarted"])
    assert {(each.kind, each.where) for each in report.violations} == {
        (ViolationKind.LOST, "after COMMIT"),
        (ViolationKind.LOST, "before COMMIT #2"),
    }


@pytest.mark.parametrize(
    ("statement", "kind", "text"),
    [
        ("BEGIN", None, ""),
        ("START TRANSACTION READ WRITE;", None, ""),
        ("BEGIN; DELETE FROM a; COMMIT", SpotKind.STATEMENT, "BEGIN; DELETE FROM a; COMMIT"),
        ("commit;", SpotKind.COMMIT, "commit"),
        ("COMMIT PREPARED 'a'", SpotKind.STATEMENT, "COMMIT PREPARED ?"),
        ("SELECT  'it''s', 5\n FROM a1 WHERE b=$1", SpotKind.STATEMENT, "SELECT ?, ? FROM a1 WHERE b=$1"),
        ("SAVEPOINT own_1234567", SpotKind.STATEMENT, "SAVEPOINT own_?"),
        ("SELECT $x1a$a 'b$x1a$, $1", SpotKind.STATEMENT, "SELECT ?, $1"),
    ],
)
def test_how_a_place_is_recognised(statement: str, kind: SpotKind | None, text: str) -> None:
    """By what does not differ from message to message; to begin a transaction is no place."""
    stage = Stage()
    stage.watch(1, 0)
    spot = Spot(0, kind, text, 1) if kind else None
    assert stage.before(1, statement) == (True, (1, spot))


def test_a_seed_repeats_a_run() -> None:
    """With the same seed the same faults are chosen, in the same order; with a limit, some of each kind."""
    spots = [Spot(0, SpotKind.STATEMENT, f"statement {number}", 1) for number in range(9)]
    every = plan(spots, {FaultKind.RESTARTED})
    assert len(every) == 9 * 6 + 5
    assert sample(every, None, random.Random(7)) == sample(every, None, random.Random(7))
    assert sample(every, None, random.Random(7)) != sample(every, None, random.Random(8))
    some = sample(every, 12, random.Random(7))
    assert {fault.kind for fault in some} == set(FaultKind) - {FaultKind.RESTARTED}
    assert len(some) == 12


def _charge(amount: int, *, currency: str) -> str:
    return f"{amount} {currency}"


async def _charge_later() -> str:
    return "later"


def test_marks_elsewhere_do_nothing() -> None:
    """Outside the kit, a mark calls the function that it is given, and returns what that returns."""
    faults.point("locked")
    call: Callable[..., Any] = faults.effect
    assert call("charge", _charge, 5, currency="EUR", key="order-1") == "5 EUR"
    assert asyncio.run(call("charge", _charge_later)) == "later"
    assert call("charge") is None
