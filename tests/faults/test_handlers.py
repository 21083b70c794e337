"""What the fault kit says about handlers: nothing about a right one, and the mistake of each wrong one."""

import pytest

from inbox_outbox.faults import FaultKind, ViolationKind
from tests import servers
from tests.support.database import Database
from tests.support.faults import wrong_handlers
from tests.support.faults.shop import Shop
from tests.support.on_servers import on
from tests.support.present import present

RIGHT = "tests.support.faults.right_handlers"
WRONG = "tests.support.faults.wrong_handlers"
LEASE = 0.8
"""Seconds; that of `right_handlers`, and longer than the lock in `wrong_handlers`."""

DOUBLED, LOST = ViolationKind.DOUBLED, ViolationKind.LOST
KILLED, CUT, ANSWER_LOST = FaultKind.KILLED, FaultKind.CUT, FaultKind.ANSWER_LOST
AT_ONCE, LEASE_LOST, LATE, TWICE = FaultKind.AT_ONCE, FaultKind.LEASE_LOST, FaultKind.LATE, FaultKind.TWICE
ACK_LOST, ACKED_AND_KILLED = FaultKind.ACK_LOST, FaultKind.ACKED_AND_KILLED

BILL = "('order-{run}', 500)"
ALL_DUPLICATES = {KILLED, ANSWER_LOST, TWICE, AT_ONCE, LATE, ACK_LOST, LEASE_LOST}
MISTAKES = {
    "naive": (DOUBLED, BILL, TWICE, ALL_DUPLICATES),
    "claims_first": (LOST, BILL, KILLED, {KILLED, CUT, ANSWER_LOST}),
    "writes_first": (DOUBLED, BILL, KILLED, {KILLED, CUT, ANSWER_LOST, AT_ONCE, LEASE_LOST}),
    "calls_before_commit": (DOUBLED, "effect charge", KILLED, {KILLED, CUT}),
    "commits_in_the_middle": (LOST, "('order-{run}-freight', 90)", KILLED, {KILLED, CUT, ANSWER_LOST}),
    "autocommits": (LOST, BILL, ANSWER_LOST, {KILLED, CUT, ANSWER_LOST}),
    "swallows": (LOST, BILL, CUT, {CUT, ANSWER_LOST}),
    "draws_its_key": (DOUBLED, BILL, ACK_LOST, ALL_DUPLICATES),
    "publishes_after_commit": (LOST, "effect billed", ANSWER_LOST, {KILLED, ANSWER_LOST}),
    "looks_then_writes": (DOUBLED, BILL, AT_ONCE, {AT_ONCE, LEASE_LOST}),
    "answers_early": (LOST, BILL, ACKED_AND_KILLED, {ACKED_AND_KILLED}),
    "remembers": (DOUBLED, BILL, KILLED, {KILLED, ACK_LOST, AT_ONCE, LEASE_LOST}),
    "locks_for_a_while": (DOUBLED, BILL, LEASE_LOST, {LEASE_LOST, LATE}),
}
"""By handler: what happens to which effect, the fault that the mistake is known by, and all that show it."""
SOMETIMES = {"locks_for_a_while": set(FaultKind)}
"""What else can show a mistake that is one of time, if this machine is slow."""


@pytest.fixture
def shop(migrated: Database) -> Shop:
    """A shop, on each server in turn."""
    return Shop(migrated)


@on("postgresql")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_and_named(shop: Shop, name: str) -> None:
    """Each mistake is found by the fault that it is known by: the kit names the effect, what happened to it,
    and the line, if the fault strikes at one."""
    kind, effect, fault, _ = MISTAKES[name]
    report = shop.under_faults(f"{WRONG}:{name}", only=[fault], **_options(name))
    assert {(each.kind, each.effect, each.fault) for each in report.violations} == {(kind, effect, fault)}
    has_lines = fault in (KILLED, CUT, ANSWER_LOST, AT_ONCE, LEASE_LOST)
    function = getattr(wrong_handlers, name).__code__
    for each in report.violations:
        assert each.line.startswith("tests/support/faults/wrong_handlers.py:") is has_lines
        assert not has_lines or int(each.line.partition(":")[2]) > function.co_firstlineno


@on("postgresql")
def test_a_duplicate_before_the_first_statement(shop: Shop) -> None:
    """A duplicate that overtakes there is handled as if it had come earlier, so it shows nothing: the server
    gets no part of the statement before."""
    report = shop.under_faults(f"{WRONG}:looks_then_writes", only=[AT_ONCE])
    wheres = {each.where for each in report.violations}
    assert wheres == {"before INSERT INTO bill VALUES ($1, $2)", "before COMMIT"}
    assert report.tried == {AT_ONCE: 3}


@pytest.mark.long
@on("postgresql")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_by_the_faults_that_show_it(shop: Shop, name: str) -> None:
    """Of all faults, those that show a mistake are known, and no others show it."""
    kind, effect, _, faults = MISTAKES[name]
    report = shop.under_faults(f"{WRONG}:{name}", **_options(name) | {"lease": LEASE})
    found = {each.fault for each in report.violations if (each.kind, each.effect) == (kind, effect)}
    assert faults <= found <= faults | SOMETIMES.get(name, set())


@on("postgresql")
def test_nothing_is_found_in_a_right_handler(shop: Shop) -> None:
    """The inbox's block passes every kind of fault."""
    report = shop.under_faults(f"{RIGHT}:transaction", seed=3, limit=14)
    assert report.violations == ()
    assert set(report.tried) >= {KILLED, CUT, ANSWER_LOST, AT_ONCE, LATE, TWICE, ACK_LOST, ACKED_AND_KILLED}


@pytest.mark.long
@on(*servers.NAMES)
@pytest.mark.parametrize("name", ["transaction", "decorated", "steps", "queued", "asynchronous", "by_hand"])
def test_a_right_handler_passes_all_faults(shop: Shop, name: str) -> None:
    """However the inbox is used, and with a table of one's own, no fault doubles or loses an effect."""
    report = shop.under_faults(f"{RIGHT}:{name}", lease=LEASE)
    assert report.violations == (), str(report)


@pytest.mark.long
@on("postgresql")
def test_asyncpg(shop: Shop) -> None:
    """With another driver the same holds."""
    asynchronous = {"SHOP_ASYNC_URL": shop.url.replace("+psycopg", "+asyncpg")}
    report = shop.under_faults(f"{RIGHT}:asynchronous", environ=asynchronous)
    assert report.violations == (), str(report)


def _options(name: str) -> dict[str, object]:
    if name != "locks_for_a_while":
        return {}
    server = present("redis", servers.find_redis())
    return {"lease": LEASE, "environ": {"SHOP_REDIS": server.url}}
