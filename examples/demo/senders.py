"""Three programs that write departures to their database and send a message about each to a broker.

They are processes of their own. Each answers one request after the other, and tells which one it begins.
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
"""Seconds after which another relay takes over the messages of one that was killed."""

Request = Sequence[Departure]
Program = Callable[[Engine, FileBroker, Request], None]

_outbox = Outbox()


def commit_then_send(engine: Engine, broker: FileBroker, departures: Request) -> None:
    """First the database, then the broker: killed in between, it never sends."""
    with engine.begin() as connection:
        write(connection, departures)
    send(broker, departures)


def send_then_commit(engine: Engine, broker: FileBroker, departures: Request) -> None:
    """First the broker, then the COMMIT: killed in between, it has spoken of what is rolled back."""
    with engine.begin() as connection:
        write(connection, departures)
        send(broker, departures)


def with_outbox(engine: Engine, broker: FileBroker, departures: Request) -> None:
    """The messages are rows of the same transaction; sending them is the relay's business."""
    messages = [Message(TOPIC, body(each), key="/".join(map(str, each.key))) for each in departures]
    with engine.begin() as connection:
        write(connection, departures)
        _outbox.publish_many(connection, messages)


def write(connection: Connection, departures: Request) -> None:
    """In the caller's transaction, write departures to the table."""
    rows = [each._asdict() | {"date": date.fromisoformat(each.date)} for each in departures]
    connection.execute(insert(table), rows)


def send(broker: FileBroker, departures: Request) -> None:
    """Send a message about each departure, one after the other."""
    for departure in departures:
        broker.put((str(uuid4()), body(departure)))


def body(departure: Departure) -> str:
    """What a message says."""
    return json.dumps(departure)


def main(pipe: Pipe, url: URL, file: Path, program: Program, requests: Sequence[Request], first: int) -> None:
    """Let a program answer requests, of which the first one has this number. Each one's number is said
    before it begins, and after the last one the next number."""
    engine = create_engine(url)
    with closing(FileBroker(file)) as broker:
        for number, request in enumerate(requests, first):
            pipe.send(number)
            program(engine, broker, request)
        pipe.send(first + len(requests))
        pipe.poll(None)
    engine.dispose()


def relay(pipe: Pipe, url: URL, file: Path) -> None:
    """Take the outbox's messages to the broker until the other end of the pipe is closed."""
    logging.disable()  # what a kill leads to is expected
    engine = create_engine(url)
    with closing(FileBroker(file)) as broker:
        sending = Relay(engine, broker, lease=LEASE, backoff=Backoff(first=0.1))

        def stop() -> None:
            pipe.poll(None)
            sending.stop()

        threading.Thread(target=stop, daemon=True).start()
        sending.run()
    engine.dispose()
