"""How long writers wait while a large inbox of the first revision is brought to the newest one."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, text

from inbox import migration, schema

from ._business import CONSUMER
from ._filling import add_rows, vacuum
from ._lab import Lab
from ._measure import Grid, Report, figure

_FIRST = "0001"
_MOST = 1.0
"""How many seconds a writer may wait."""
_PAUSE = 0.005
"""Seconds between two messages of a writer."""
_ADD = text("INSERT INTO inbox_message (consumer, key, claim) VALUES (:consumer, :key, '')")
"""As the first revision's `accept` writes it; it is valid in each revision."""


def upgrade(lab: Lab) -> Report:
    """The longest of the INSERTs of two writers, during all revisions."""
    rows = 1_000_000 if lab.quick else 10_000_000
    with lab.database("upgrade", connections=4) as engine:
        migration.migrate(engine, _FIRST)
        now = datetime.now(UTC)
        with lab.step(f"filling an inbox with {rows:,} keys"):
            message = schema.tables().message
            with engine.begin() as connection:
                add_rows(connection, message, rows, now - timedelta(days=7), now)
            vacuum(engine, message)
        before: list[float] = []
        with _writing(engine, before):
            time.sleep(10)
        during: list[float] = []
        with lab.step("migrating"), _writing(engine, during):
            began = time.perf_counter()
            migration.migrate(engine)
            seconds = time.perf_counter() - began
    line = f"{seconds:.1f}", f"{max(before):.3f}", f"{max(during):.3f}", f"{len(during):,}"
    columns = ("seconds", "longest INSERT before, s", "during, s", "INSERTs during")
    title = f"all revisions with {rows:,} rows"
    return Report(
        figures=[figure(f"{title}: seconds of the longest INSERT", [max(during)], at_most=_MOST)],
        grids=[Grid(title, columns, [line])],
    )


@contextmanager
def _writing(engine: Engine, found: list[float]) -> Iterator[None]:
    """Two writers, which add the seconds of each INSERT until committed."""
    done = threading.Event()
    errors: list[BaseException] = []

    def write(name: str) -> None:
        number = 0
        try:
            while not done.wait(_PAUSE):
                number += 1
                began = time.perf_counter()
                with engine.begin() as connection:
                    connection.execute(_ADD, {"consumer": CONSUMER, "key": f"{name}-{began}-{number}"})
                found.append(time.perf_counter() - began)
        except BaseException as error:
            errors.append(error)
            raise

    writers = [threading.Thread(target=write, args=(f"writer-{number}",)) for number in range(2)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        done.set()
        for writer in writers:
            writer.join()
    if errors:
        raise errors[0]
