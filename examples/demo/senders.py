"""Three programs that write departures to their database and send a message about each to a broker.

Each runs in its own process, answers requests one by one, and reports which request it begins.
"""

import json
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import date
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from uuid import uuid4

from sqlalchemy import URL, Connection, Engine, create_engine, insert

from examples.demo.file_broker import FileBroker
from examples.demo.flights import Departure
from examples.demo.table import departure as table
from inbox import Backoff
from outbox import Message, Outbox, Relay

TOPIC = "demo.departures"
LEASE = 1
"""Seconds after which another relay takes over the messages of a killed relay."""

Request = Sequence[Departure]
Program = Callable[[Engine, FileBroker, Request], None]

_outbox = Outbox()


def commit_then_send(engine: Engine, broker: FileBroker, departures: Request) -> None:
    """Commit, then send: if it is killed in between, the messages are never sent."""
    with engine.begin() as connection:
        write(connection, departures)
    send(broker, departures)


def send_then_commit(engine: Engine, broker: FileBroker, departures: Request) -> None:
    """Send, then commit: if it is killed in between, it has announced something that is rolled back."""
    with engine.begin() as connection:
        write(connection, departures)
        send(broker, departures)


def with_outbox(engine: Engine, broker: FileBroker, departures: Request) -> None:
    """Write the messages as rows in the same transaction; the relay sends them."""
    messages = [Message(TOPIC, body(each), key="/".join(map(str, each.key))) for each in departures]
    with engine.begin() as connection:
        write(connection, departures)
        _outbox.publish_many(connection, messages)


def write(connection: Connection, departures: Request) -> None:
    """Write departures to the table, in the caller's transaction."""
    rows = [each._asdict() | {"date": date.fromisoformat(each.date)} for each in departures]
    connection.execute(insert(table), rows)


def send(broker: FileBroker, departures: Request) -> None:
    """Send a message about each departure, one after the other."""
    for departure in departures:
        broker.put((str(uuid4()), body(departure)))


def body(departure: Departure) -> str:
    """The body of a departure's message."""
    return json.dumps(departure)


def main(pipe: Pipe, url: URL, file: Path, program: Program, requests: Sequence[Request], first: int) -> None:
    """Let a program answer requests, numbered from `first` on. It reports each request's number before it
    begins, and the next number after the last."""
    engine = create_engine(url)
    with closing(FileBroker(file)) as broker:
        for number, request in enumerate(requests, first):
            pipe.send(number)
            program(engine, broker, request)
        pipe.send(first + len(requests))
        pipe.poll(None)
    engine.dispose()


def relay(pipe: Pipe, url: URL, file: Path) -> None:
    """Send the outbox's messages to the broker until the other end of the pipe is closed."""
    logging.disable()  # the consequences of a kill are expected
    engine = create_engine(url)
    with closing(FileBroker(file)) as broker:
        sending = Relay(engine, broker, lease=LEASE, backoff=Backoff(first=0.1))

        def stop() -> None:
            pipe.poll(None)
            sending.stop()

        threading.Thread(target=stop, daemon=True).start()
        sending.run()
    engine.dispose()
