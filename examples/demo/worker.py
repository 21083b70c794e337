"""A worker process: takes chunks of messages from the broker, one transaction each, and answers."""

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe

from sqlalchemy import URL, Engine, create_engine

from examples.demo.flights import Departure
from examples.demo.handler import Handler
from inbox import Verdict, is_transient


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a chunk; sent after its transaction has ended."""

    chunk: int
    counted: int = 0
    refused: int = 0
    again: Sequence[Departure] = ()
    """Messages that were not acknowledged: to be redelivered."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages delivered together."""

    number: int
    departures: tuple[Departure, ...]


def main(pipe: Pipe, url: URL, handler: Handler) -> None:
    """Work until the broker closes the pipe. The first answer says that this worker is ready."""
    engine = create_engine(url)
    try:
        engine.connect().close()
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):
            pipe.send(None)
            while True:
                pipe.send(work(engine, handler, pipe.recv()))
    finally:
        engine.dispose()


def work(engine: Engine, handler: Handler, chunk: Chunk) -> Answer:
    """Handle a chunk in one transaction; give it back after a transient error."""
    try:
        with engine.begin() as connection:
            verdicts = handler(connection, chunk.departures)
    except Exception as error:
        if not is_transient(error):
            raise
        time.sleep(random.uniform(0, 0.1))
        return Answer(chunk.number, again=chunk.departures)
    taken = zip(chunk.departures, verdicts, strict=True)
    return Answer(
        chunk.number,
        counted=verdicts.count(Verdict.NEW),
        refused=verdicts.count(Verdict.DUPLICATE),
        again=[departure for departure, verdict in taken if verdict is Verdict.IN_FLIGHT],
    )
