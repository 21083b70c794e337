"""Accounts in several databases: an inbox and an outbox in each, and no transaction over two of them.

An account lives in one database, which its name tells. A transfer between two of them is two transactions and
a message: the first one takes the request, debits the one account and publishes a message; the second one
takes that message in the inbox beside the other account, and credits it. Each database has a relay of its
own. The relays are killed with ``kill -9`` at random, and every transfer is requested twice; in the end the
movements are counted.

    python -m examples.shards [--url URL --url URL ...] [--transfers N] [--kills N] [--seed N]
"""

import argparse
import json
import random
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
    text,
    update,
)

from examples._outbox import clear, waiting
from examples.embedded_postgres import EmbeddedPostgres
from inbox import Backoff, Delivery, Inbox, Outcome, migration
from outbox import DirectDelivery, Envelope, Outbox, Relay

ACCOUNTS = [f"account-{number}" for number in range(12)]
BALANCE = 10_000
CREDITS = "example.credits"

metadata = MetaData()
account = Table(
    "example_account",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("cents", BigInteger, nullable=False),
)
movement = Table(
    "example_movement",
    metadata,
    Column("transfer", String(20), nullable=False),
    Column("cents", BigInteger, nullable=False),
)


class Bank:
    """Accounts that are divided among databases."""

    def __init__(self, engines: list[Engine]) -> None:
        self.engines = engines
        requests, arrivals, outbox = Inbox("example-requests"), Inbox("example-credits"), Outbox()

        def debit(connection: Connection, transfer: dict[str, str | int]) -> None:
            move(connection, transfer["from"], transfer["id"], -int(transfer["cents"]))
            outbox.publish(connection, CREDITS, transfer, key=str(transfer["to"]))

        def credit(connection: Connection, message: Delivery | Envelope) -> None:
            transfer = json.loads(message.payload)
            move(connection, transfer["to"], transfer["id"], transfer["cents"])

        # A handler for each database; the account decides which of them is called.
        self._debits = [requests.handler(each, key=lambda one: one["id"])(debit) for each in engines]
        self._credits = [
            arrivals.handler(each, key=lambda message: json.loads(message.payload)["id"])(credit)
            for each in engines
        ]

    def shard(self, name: str) -> int:
        """The database of an account: the same one in every process, and for ever."""
        return zlib.crc32(name.encode()) % len(self.engines)

    def transfer(self, transfer: dict[str, str | int]) -> Outcome:
        """Take a request where the money comes from."""
        return self._debits[self.shard(str(transfer["from"]))](transfer)

    def credit(self, message: Delivery | Envelope) -> Outcome:
        """Take a message where the money goes to."""
        return self._credits[self.shard(json.loads(message.payload)["to"])](message)


def move(connection: Connection, name: object, transfer: object, cents: int) -> None:
    changed = update(account).where(account.c.name == name).values(cents=account.c.cents + cents)
    if connection.execute(changed).rowcount != 1:  # also if the account lives elsewhere
        raise LookupError(f"{name} is not in this database")
    connection.execute(insert(movement).values(transfer=transfer, cents=cents))


def relay(bank: Bank, number: int) -> None:
    """Run the relay of one database, until it is killed."""
    delivery = DirectDelivery({CREDITS: bank.credit})
    Relay(bank.engines[number], delivery, backoff=Backoff(first=0.1), lease=2, poll=0.5).run()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    about = "a database, as an SQLAlchemy URL; can be repeated (default: two in an embedded PostgreSQL)"
    parser.add_argument("--url", action="append", type=migration.database_url, default=[], help=about)
    parser.add_argument("--transfers", type=int, default=100)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--relay", type=int, help=argparse.SUPPRESS)  # what the child processes are
    arguments = parser.parse_args()
    with databases(arguments.url) as urls:
        bank = Bank([create_engine(url) for url in urls])
        if arguments.relay is not None:
            relay(bank, arguments.relay)
            return
        seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
        print(f"seed: {seed}")
        prepare(bank)
        run(bank, urls, random.Random(seed), arguments.transfers, arguments.kills)
        count(bank, arguments.transfers)


@contextmanager
def databases(given: list[URL]) -> Iterator[list[URL]]:
    """The databases of the command line, or two of an embedded server."""
    with ExitStack() as opened:
        if given:
            yield given
            return
        server = opened.enter_context(EmbeddedPostgres()).url
        admin = create_engine(server, isolation_level="AUTOCOMMIT")
        names = ["shard_0", "shard_1"]
        with admin.connect() as connection:
            for name in names:
                connection.execute(text(f"CREATE DATABASE {name}"))
        yield [server.set(database=name) for name in names]


def prepare(bank: Bank) -> None:
    """Give every account its balance."""
    for engine in bank.engines:
        migration.migrate(engine)
        clear(engine, CREDITS)
        metadata.drop_all(engine)
        metadata.create_all(engine)
    for name in ACCOUNTS:
        with bank.engines[bank.shard(name)].begin() as connection:
            connection.execute(insert(account).values(name=name, cents=BALANCE))


def run(bank: Bank, urls: list[URL], chance: random.Random, transfers: int, kills: int) -> None:
    """Request each transfer twice, while relays are killed and started again."""
    relays = [start(urls, number) for number in range(len(urls))]
    killed = set(chance.sample(range(transfers), min(kills, transfers)))
    try:
        for number in range(transfers):
            source, target = chance.sample(ACCOUNTS, 2)
            transfer: dict[str, str | int] = {"id": f"transfer-{number}", "from": source, "to": target}
            transfer["cents"] = 1 + number
            for _ in range(2):  # the client did not get the first answer
                bank.transfer(transfer)
            if number in killed:
                victim = chance.randrange(len(relays))
                relays[victim].kill()
                relays[victim].wait()
                relays[victim] = start(urls, victim)
        while any(waiting(engine) for engine in bank.engines):
            time.sleep(0.1)
    finally:
        for each in relays:
            each.kill()
            each.wait()
    print(f"relays killed: {len(killed)}")


def start(urls: list[URL], number: int) -> subprocess.Popen[bytes]:
    """A process that is the relay of one database."""
    options = [word for url in urls for word in ("--url", url.render_as_string(hide_password=False))]
    return subprocess.Popen([sys.executable, "-m", "examples.shards", "--relay", str(number), *options])


def count(bank: Bank, transfers: int) -> None:
    """Say how often each transfer has taken effect, and where the money is."""
    debited, credited, money = Counter[str](), Counter[str](), 0
    for number, engine in enumerate(bank.engines):
        with engine.connect() as connection:
            rows = connection.execute(select(movement)).all()
            money += (here := sum(connection.scalars(select(account.c.cents))))
        for row in rows:
            (debited if row.cents < 0 else credited)[row.transfer] += 1
        print(f"database {number}: {len(rows)} movements, {here} cents")
    for what, found in (("debited", debited), ("credited", credited)):
        once = sum(number == 1 for number in found.values())
        print(f"{what} once: {once}, expected: {transfers}")
    print(f"cents: {money}, expected: {BALANCE * len(ACCOUNTS)}")


if __name__ == "__main__":
    main()
