"""Act three: three programs write the same departures to a database and announce them to a broker.

A request writes some departures and sends a message about each. The program that answers requests is killed
with ``kill -9`` at random, and a new one goes on with the next request: the interrupted request is not
repeated, like one that has failed. With the outbox the relays are killed as well. Afterwards a consumer
counts the broker's messages, and the result is compared with the database.
"""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import Progress
from sqlalchemy import URL, Engine, create_engine

from examples._common import forget
from examples._outbox import clear
from examples.demo import handler, report, senders, table, third_report, totals
from examples.demo.file_broker import FileBroker
from examples.demo.flights import Departure
from examples.demo.senders import Program, Request
from examples.demo.stage import Stage
from examples.demo.third_report import Announced
from inbox import migration

MOST = 4_000
"""The most departures: enough to see the effect within seconds."""
TOGETHER = 10
"""Departures in a request."""
CHUNK = 1_000
"""Messages that the consumer takes in one transaction."""

PLAN = (
    "A request writes some to the database and sends a message about each, which cannot be one transaction. "
    "The program is killed with kill -9 at random, and the request it was handling is not repeated. The "
    "broker is a queue in a file; a consumer then counts its messages through its inbox."
)
PROGRAMS: dict[str, Program] = {
    "commit, send": senders.commit_then_send,
    "send, commit": senders.send_then_commit,
    "outbox": senders.with_outbox,
}


def run(console: Console, url: URL, departures: Sequence[Departure]) -> bool:
    """Run act three; return whether, with the outbox, the consumer received exactly what was committed.

    Raises:
        RuntimeError: a process ends unexpectedly, or there are foreign messages in the outbox.
    """
    some = departures[:MOST]
    requests = [some[at : at + TOGETHER] for at in range(0, len(some), TOGETHER)]
    engine = create_engine(url)
    try:
        migration.migrate(engine)
        clear(engine, senders.TOPIC)
        console.print()
        console.print("Act three: departures that are committed, and announced to others", style="bold")
        console.print(f"{len(some):,} departures in {len(requests):,} requests")
        console.print(PLAN)
        with report.progress(console) as bars:
            found = {name: _perform(engine, name, requests, bars) for name in PROGRAMS}
    finally:
        _clean_up(engine)
    console.print(third_report.table(found))
    return found["outbox"].is_exact


def _perform(engine: Engine, name: str, requests: Sequence[Request], bars: Progress) -> Announced:
    """Let one program answer all requests, and count the results."""
    table.reset(engine)
    task = bars.add_task(name, total=sum(map(len, requests)))
    with TemporaryDirectory(prefix="broker-") as folder:
        file = Path(folder) / "messages"
        stage = Stage(engine, file, PROGRAMS[name], requests)
        began = time.monotonic()
        stage.run(lambda begun: bars.update(task, completed=sum(map(len, requests[:begun]))))
        seconds = time.monotonic() - began
        with closing(FileBroker(file)) as broker:
            messages = broker.messages()
    heard = [Departure(*json.loads(body)) for _, body in messages]
    committed = table.departures(engine)
    return Announced(
        committed=totals.of(committed),
        counted=_count(engine, heard),
        lost=len(set(committed).difference(heard)),
        ghosts=len(set(heard).difference(committed)),
        again=len(messages) - len({identity for identity, _ in messages}),
        killed=stage.killed,
        relays_killed=stage.relays_killed,
        seconds=seconds,
    )


def _count(engine: Engine, heard: Sequence[Departure]) -> totals.Totals:
    """The consumer's totals, after it has taken all messages through its inbox."""
    totals.reset(engine, totals.of(heard))
    forget(engine, handler.CONSUMER)
    for at in range(0, len(heard), CHUNK):
        with engine.begin() as connection:
            handler.with_inbox(connection, heard[at : at + CHUNK])
    return totals.read(engine)


def _clean_up(engine: Engine) -> None:
    try:
        clear(engine, senders.TOPIC)
        forget(engine, handler.CONSUMER)
        totals.metadata.drop_all(engine)
        table.metadata.drop_all(engine)
    finally:
        engine.dispose()
