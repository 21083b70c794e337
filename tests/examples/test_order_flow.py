"""The order flow keeps its promises while its workers are killed, and shows which promises a variant cannot
make."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, select

from examples.embedded_postgres import free_port
from examples.order_flow import __main__ as program
from examples.order_flow import shop, trial
from examples.order_flow.processes import service
from examples.order_flow.remote import Refused, Remote
from examples.order_flow.services import NOWHERE
from examples.order_flow.shop import Message, Shop
from examples.order_flow.trial import Plan, Result
from examples.order_flow.worker import VARIANTS, work
from tests.examples.test_demo import interrupted
from tests.support.database import Database
from tests.support.program import command, complaints, run

PLAN = Plan(orders=12, kills=3)
ONE = Plan(orders=1, kills=1)
RIGHT = Result(
    orders=[*ONE.statuses.items()],
    locks={"order-1": 1},
    shipments={"order-1": 1},
    calls={"lock order-1": 2},
    killed=1,
    retries=1,
    open_for=0,
    seconds=1,
)
"""Of ONE order, with a call that was repeated by one retry."""


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """A database with the inbox tables and an empty shop."""
    found = postgres.engine()
    shop.metadata.create_all(found)
    return found


@pytest.fixture
def remote() -> Iterator[Remote]:
    """A service in a separate process."""
    with service() as found:
        yield found


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_orders_are_right_after_kills(postgres: Database, variant: str) -> None:
    """Each order is one row with the right status. With steps or as a chain, stock is locked and orders are
    shipped once, and no attempt repeats more than the one call that was not finished."""
    result = trial.run(postgres.engine(), variant, PLAN, lambda _: None)
    assert Counter(result.orders) == Counter(PLAN.statuses.items())
    assert result.killed == PLAN.kills
    if variant != "transaction":
        confirmed = {number: 1 for number, status in PLAN.statuses.items() if status == "confirmed"}
        assert result.locks == result.shipments == confirmed
        assert result.repeated <= result.retries
    assert all(result.promises(PLAN, variant).values())


@pytest.mark.parametrize(("variant", "locks"), [("transaction", 2), ("steps", 1), ("chain", 1)])
def test_a_repeated_stock_lock_is_seen(engine: Engine, remote: Remote, variant: str, locks: int) -> None:
    """Shipping does not answer at first. The variant with a transaction forgets that it has locked the stock,
    and locks it again; the others do not call a second time."""
    with service() as shipping:
        down = VARIANTS[variant](Shop(engine, remote, Remote(free_port())))
        up = VARIANTS[variant](Shop(engine, remote, shipping))
        with engine.begin() as connection:
            shop.publish(connection, "check", "order-1", "somewhere")
        failed: list[Message] = []

        def noting(message: Message) -> float | None:
            try:
                return down(message)
            except OSError:
                failed.append(message)
                raise

        while not failed:
            work(engine, noting)
        while messages(engine):
            work(engine, up)
        assert remote.state()["kept"] == {"order-1": locks}
        assert shipping.state()["kept"] == {"order-1": 1}
    assert remote.state()["calls"]["lock order-1"] == locks
    with engine.connect() as connection:
        assert connection.execute(select(shop.order.c.status)).scalars().all() == ["confirmed"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_stock_of_a_refused_order_is_released(engine: Engine, remote: Remote, variant: str) -> None:
    """An order that cannot be shipped keeps no stock, and a second message about it has no effect."""
    handle = VARIANTS[variant](Shop(engine, remote, remote))
    with engine.begin() as connection:
        for _ in range(2):
            shop.publish(connection, "check", "order-1", NOWHERE)
    while messages(engine):
        work(engine, handle)
    assert remote.state() == {
        "calls": {f"{verb} order-1": 1 for verb in ("check", "lock", "ship", "release")},
        "kept": {},
    }
    with engine.connect() as connection:
        assert connection.execute(select(shop.order.c.status)).scalars().all() == ["refused"]


def test_a_service_counts_and_knows_its_keys(remote: Remote) -> None:
    """The service counts every call. A call with a known key does nothing, and gets the first answer
    again."""
    first, other = (remote.call("lock", "order-1") for _ in range(2))
    assert first != other
    again = [remote.call("lock", "order-2", key="key") for _ in range(2)]
    assert again[0] == again[1]
    for _ in range(2):
        with pytest.raises(Refused):
            remote.call("ship", "order-3", key="other key", to=NOWHERE)
    remote.call("release", "order-1", id=first)
    assert remote.state() == {
        "calls": {"lock order-1": 2, "lock order-2": 2, "ship order-3": 2, "release order-1": 1},
        "kept": {"order-1": 1, "order-2": 1},
    }


@pytest.mark.long
def test_it_runs_as_a_program(postgres: Database) -> None:
    """The program prints a table of all variants, says that all promises were kept, and leaves nothing
    behind."""
    done = run(command("examples.order_flow", "--orders", "12", "--kills", "2", url=postgres.url))
    assert (done.returncode, complaints(done.stderr)) == (0, ""), done.stdout
    assert "Every promise was kept." in done.stdout
    rows = {
        label.strip(): cells.split("│")
        for label, cells in re.findall(r"^│ (.+?) +│(.*)│$", done.stdout, re.MULTILINE)
    }
    assert [cell.strip() for cell in rows["rows of orders"]] == ["12", "12", "12", "12"]
    # The last orders may be done before their worker can be killed.
    assert {cell.strip() for cell in rows["workers killed"]} <= {"", "1", "2"}
    assert not [name for name in inspect(postgres.engine()).get_table_names() if name.startswith("example_")]


@pytest.mark.long
def test_it_can_be_interrupted(postgres: Database) -> None:
    """Ctrl-C ends the program without a traceback, and removes its tables."""
    engine = postgres.engine(isolation_level="AUTOCOMMIT")

    def has_begun() -> bool:
        with engine.connect() as connection:
            if not inspect(connection).has_table("example_order"):
                return False
            return connection.execute(select(shop.order.c.id).limit(1)).first() is not None

    interrupted(has_begun, "examples.order_flow", url=postgres.url)
    assert not inspect(engine).has_table("example_order")


def test_a_broken_promise_is_an_exit_code(
    postgres: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A superfluous stock lock is reported for the variants that promise not to make one, and changes the
    exit code."""
    monkeypatch.setattr(trial, "run", lambda *_: replace(RIGHT, locks={"order-1": 2}))
    url = postgres.url.render_as_string(hide_password=False)
    assert program.main(["--orders", "1", "--kills", "1", "--url", url]) == program.BROKEN
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("BROKEN")]
    promise = "stock is locked once for each confirmed order, and for no other"
    assert lines == [f"BROKEN: {variant}: {promise}" for variant in ("steps", "chain")]


@pytest.mark.parametrize(
    ("change", "variant"),
    [
        ({"orders": [("order-1", "confirmed")] * 2}, "transaction"),
        ({"orders": [("order-1", "new")]}, "transaction"),
        ({"shipments": {}}, "steps"),
        ({"calls": {"lock order-1": 3}}, "chain"),
    ],
)
def test_every_promise_can_be_broken(change: dict[str, Any], variant: str) -> None:
    """A result with a single error breaks exactly one promise."""
    assert all(RIGHT.promises(ONE, variant).values())
    assert list(replace(RIGHT, **change).promises(ONE, variant).values()).count(False) == 1


def test_it_says_why_it_cannot_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """If the program cannot run, it prints one reason, without a traceback, and exits with its own code."""
    file = tmp_path_factory.mktemp("sqlite") / "shop.db"
    done = run([*command("examples.order_flow"), "--url", f"sqlite:///{file}"])
    assert (done.returncode, done.stderr) == (2, "")
    assert "its queue needs PostgreSQL, and this is sqlite" in done.stdout


def messages(engine: Engine) -> int:
    """The number of messages in the queue."""
    with engine.connect() as connection:
        return len(connection.execute(select(shop.queue.c.id)).all())
