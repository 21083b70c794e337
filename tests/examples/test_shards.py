"""Accounts in several databases: each transfer is debited once and credited once, whatever is killed."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest
from sqlalchemy import Engine, delete, insert, select

from examples.shards import ACCOUNTS, CREDITS, Bank, account, movement, prepare
from examples.shards import metadata as business
from inbox import Inbox, Outcome, Verdict, migration, schema
from inbox_outbox.testing import delivery
from tests.servers import Server
from tests.support.database import Database
from tests.support.forked import run_module
from tests.support.on_servers import each_on, on
from tests.support.program import complaints

TRANSFERS: list[dict[str, str | int]] = [
    {"id": f"transfer-{number}", "from": source, "to": target, "cents": 1}
    for number, (source, target) in enumerate(pairwise(ACCOUNTS))
]


def movements(engine: Engine) -> list[str]:
    """The transfers that have moved money here."""
    with engine.connect() as connection:
        return sorted(connection.scalars(select(movement.c.transfer)))


def credit(bank: Bank, transfer: dict[str, str | int]) -> Outcome:
    """Deliver a transfer's message."""
    return bank.credit(delivery(transfer, topic=CREDITS))


@pytest.fixture
def other(server: Server) -> Iterator[Database]:
    """A second database on the same server."""
    found = Database(server, server.new_database())
    yield found
    found.close()


@pytest.mark.long(but_on="postgresql")
@each_on("postgresql", "kills", [4], [2], among=("mariadb",))
def test_relays_are_killed(migrated: Database, other: Database, kills: int) -> None:
    """Each transfer is requested twice, and has one debit and one credit; no cent is lost."""
    urls = [f"--url={each.url.render_as_string(hide_password=False)}" for each in (migrated, other)]
    done = run_module("examples.shards", *urls, "--transfers=40", f"--kills={kills}")
    assert (done.returncode, complaints(done.stderr)) == (0, "")
    found = done.stdout.splitlines()
    assert f"relays killed: {kills}" in found
    for what in ("debited once: 40, expected: 40", "credited once: 40, expected: 40"):
        assert what in found, done.stdout
    assert found[-1] == "cents: 120000, expected: 120000"


@on("sqlite")
def test_a_program_that_looks_in_the_wrong_database(migrated: Database, other: Database) -> None:
    """Its handlers find no account, so nothing is taken there, and the right one takes the message later."""
    engines = [migrated.engine(), other.engine()]
    prepare(bank := Bank(engines))
    wrong = Bank(engines[::-1])
    for call in (wrong.transfer, partial(credit, wrong)):
        with pytest.raises(LookupError, match="is not in this database"):
            call(TRANSFERS[0])
    assert bank.transfer(TRANSFERS[0]).verdict is Verdict.NEW
    assert credit(bank, TRANSFERS[0]).verdict is Verdict.NEW


@each_on("postgresql", "one", [1], among=("mariadb",))
def test_accounts_move_to_another_database(migrated: Database, other: Database, one: int) -> None:
    """The keys of all that their old database has taken go with them, so what comes again is a duplicate."""
    prepare(before := Bank([migrated.engine()]))
    for transfer in TRANSFERS:
        before.transfer(transfer)
        credit(before, transfer)
    source, target = migrated.engine(), other.engine()
    migration.migrate(target)
    business.create_all(target)
    after = Bank([source, target])
    moved = [name for name in ACCOUNTS if after.shard(name) == one]
    carry_over(source, target)
    with source.begin() as old, target.begin() as new:  # what a program of yours does, in its own way
        rows = old.execute(select(account).where(account.c.name.in_(moved))).mappings().all()
        new.execute(insert(account), [dict(row) for row in rows])
        old.execute(delete(account).where(account.c.name.in_(moved)))
    for transfer in TRANSFERS:
        assert after.transfer(transfer).verdict is Verdict.DUPLICATE
        assert credit(after, transfer).verdict is Verdict.DUPLICATE
    assert movements(target) == []


def carry_over(source: Engine, target: Engine) -> None:
    """Take in the new database what the old one has taken."""
    rows = schema.tables().message
    with source.connect() as old, target.begin() as new:
        for consumer in ("example-requests", "example-credits"):
            keys = old.scalars(select(rows.c.key).where(rows.c.consumer == consumer)).all()
            Inbox(consumer).accept_many(new, keys)
