"""A purge is killed at any moment while its job is repeated: each partition is applied as a whole or not at
all."""

import os
import random
import signal
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from threading import Timer

import pytest
from sqlalchemy import Engine, create_engine, func, select, update

from inbox import purge
from inbox.schema import tables
from tests.support.database import Database
from tests.support.forked import run_forked
from tests.support.spark.writes import attempt, batch, make_result, prepared, taken, written
from tests.support.together import Task

MESSAGE, LEDGER = tables().message, tables().ledger
PARTS = [[f"{name}{number:03}" for number in range(150)] for name in "ab"]
ROUNDS, MONTH = 10, timedelta(days=30)


@pytest.mark.long
def test_a_purge_killed_while_a_job_comes_again(migrated: Database) -> None:
    """A purge is killed with kill -9 at random moments. No row of the inbox is left without its load, and a
    repeated partition finds either its ledger row or none of its keys. The next purge deletes everything, and
    the next job writes each row once."""
    engine = make_result(migrated)
    url = migrated.url.render_as_string(hide_password=False)
    replay(migrated, engine)
    for _ in range(ROUNDS):
        age(engine)
        delay = random.uniform(0, 0.4)
        killed = Task(lambda delay=delay: run_forked(die_purging, ["die_purging", url, str(delay)]))  # type: ignore[misc]
        for _ in range(3):
            replay(migrated, engine)
        code, _, errors = killed.result()
        assert code == -signal.SIGKILL, errors
        replay(migrated, engine)
    age(engine)
    assert purge(engine).finished
    assert (taken(engine), entries(engine)) == ([], [])
    before = copies(engine)
    replay(migrated, engine)
    assert copies(engine) == [each + 1 for each in before]
    assert taken(engine) == sorted(key for keys in PARTS for key in keys)
    assert entries(engine) == [0, 1]


def replay(database: Database, engine: Engine) -> None:
    """Run both partitions of the job again: each is applied as a whole, or was applied before."""
    task = prepared(database, len(PARTS), run="r")
    for part, keys in enumerate(PARTS):
        done = attempt(task, part, batch(*((key, 1) for key in keys)))
        assert done is not None
        assert (done.counts.rows, done.counts.new) == (len(keys), len(keys))
    copies(engine)
    with engine.connect() as connection:
        lost = select(func.count()).where(MESSAGE.c.load.not_in(select(LEDGER.c.id)))
        assert connection.execute(lost).scalar_one() == 0


def copies(engine: Engine) -> list[int]:
    """How often each partition was applied; checks that all keys of a partition were applied equally
    often."""
    rows = Counter(key for key, _ in written(engine))
    counted = [{rows[key] for key in keys} for keys in PARTS]
    assert [len(each) for each in counted] == [1] * len(PARTS)
    return [each.pop() for each in counted]


def age(engine: Engine) -> None:
    """Date everything back by a month."""
    long_ago = datetime.now(UTC) - MONTH
    with engine.begin() as connection:
        connection.execute(update(LEDGER).values(committed_at=long_ago))
        single = update(MESSAGE).where(MESSAGE.c.accepted_at.is_not(None))
        connection.execute(single.values(accepted_at=long_ago))


def entries(engine: Engine) -> list[int]:
    """The partitions in the ledger."""
    with engine.connect() as connection:
        return list(connection.scalars(select(LEDGER.c.part).order_by(LEDGER.c.part)))


def die_purging() -> None:
    """Runs purges in a loop, in a process that is killed after `delay` seconds."""
    url, delay = sys.argv[1:]
    engine = create_engine(url)
    with engine.connect():
        Timer(float(delay), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    while True:
        purge(engine, batch=7, sleep=time.sleep)
