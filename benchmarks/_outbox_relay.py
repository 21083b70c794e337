"""A relay's rate without a broker, against a bare loop on the same table and beside other libraries."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import psycopg
from sqlalchemy import Engine

from ._measure import Grid, Rates, Report, figure, in_turn, ratios
from ._outbox_lab import OutboxLab, settle
from ._outbox_libraries import OURS, databases, left_alone, libraries, titled
from ._outbox_ours import Ours
from ._outbox_peer import Peer, driver_url
from ._outbox_rows import fill

_BATCH = 1_000
_SELECT = """
    SELECT bucket, sequence, id, topic, key, payload, content_type, headers, created_at
    FROM outbox_message ORDER BY bucket, sequence LIMIT %s
"""
_DELETE = """
    DELETE FROM outbox_message USING unnest(%s::integer[], %s::bigint[]) AS given (bucket, sequence)
    WHERE outbox_message.bucket = given.bucket AND outbox_message.sequence = given.sequence
"""
_AIMS = {"pgqueuer": 2.0, "procrastinate": 5.0, "faststream-outbox": 5.0}


def bare(lab: OutboxLab) -> Report:
    """Against the minimum: a loop of SELECT, batched DELETE and COMMIT in psycopg, without a lease, without
    records of failures, and unable to run twice at the same time."""
    messages = lab.sizes.relayed
    with lab.outbox("bare") as engine:
        ours = Ours(engine.url)
        turns = {"relay": lambda: ours.consume(messages), "bare": lambda: _loop(engine, messages)}
        rates = rates_of(
            lab, f"relay, {messages:,} messages", turns, lambda _: _fill(engine, messages), messages, (15, 3)
        )
    found = ratios(rates, "relay", "bare")
    title = f"messages/s without a broker, {messages:,} messages"
    return Report([figure("relay / bare loop in psycopg", found, at_least=0.7)], [grid(title, rates)])


def peers(lab: OutboxLab) -> Report:
    """Beside other libraries, each on its own database and loaded in its own way."""
    messages = lab.sizes.beside
    compared, left_out = libraries()
    with databases(lab, "beside", compared) as engines:
        made = {name: library(engines[name].url) for name, library in compared.items()}

        def prepare(name: str) -> None:
            made[name].load(messages)
            left_alone(engines[name])

        turns = {name: _consuming(library, messages) for name, library in made.items()}
        rates = rates_of(lab, f"beside others, {messages:,} messages", turns, prepare, messages, (5, 2))
    figures = [
        figure(f"relay / {titled(name)}", ratios(rates, OURS, name), at_least=aim)
        for name, aim in _AIMS.items()
        if name in compared
    ]
    return Report(figures, [grid(f"messages/s without a broker, {messages:,} messages", rates), *left_out])


def _consuming(library: Peer, messages: int) -> Callable[[], float]:
    return lambda: library.consume(messages)


def rates_of(
    lab: OutboxLab,
    title: str,
    turns: Mapping[str, Callable[[], float]],
    prepare: Callable[[str], None],
    messages: int,
    often: tuple[int, int],
) -> dict[str, list[float]]:
    """Messages per second in each round; only the turns are timed, not their preparation."""
    rounds = lab.rounds(*often)
    rates: dict[str, list[float]] = {name: [] for name in turns}
    tick = lab.lab.task(title, rounds)
    for number in range(rounds):
        for name in in_turn(turns, number):
            prepare(name)
            rates[name].append(messages / turns[name]())
        tick()
    return rates


def _fill(engine: Engine, messages: int) -> None:
    with engine.begin() as connection:
        fill(connection, messages)
    settle(engine)


def _loop(engine: Engine, messages: int) -> float:
    with psycopg.connect(driver_url(engine.url)) as connection:
        begun, left = time.perf_counter(), messages
        while rows := connection.execute(_SELECT, [_BATCH]).fetchall():
            connection.execute(_DELETE, [[row[0] for row in rows], [row[1] for row in rows]])
            connection.commit()
            left -= len(rows)
        seconds = time.perf_counter() - begun
    if left:
        raise AssertionError(f"{left} of {messages} messages were not found")
    return seconds


def grid(title: str, rates: Rates) -> Grid:
    rows = [[name, f"{median(found):,.0f}"] for name, found in rates.items()]
    return Grid(title, ["", "messages/s"], rows)
