"""The client's CPU time for calls of ours, beside the same work by hand."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

from sqlalchemy import Connection, Engine, TextClause

from ._lab import Lab
from ._measure import Grid, Operation, in_turn

_CALLS, _TRANSACTIONS = 300, 60
"""Between two readings of the CPU clock."""

Call = Callable[[Connection], object]
Micros = dict[str, list[float]]
"""Microseconds for a call, by variant and round."""


def in_transactions(lab: Lab, title: str, engine: Engine, variants: Mapping[str, Call]) -> Micros:
    """Many calls of each variant in turn, in a transaction that has begun before, and is rolled back."""

    for call in variants.values():
        with engine.begin() as connection:
            call(connection)  # what is done once for each database

    def spent(call: Call, calls: int) -> float:
        with engine.connect() as connection:
            call(connection)
            return _spent(partial(call, connection), calls)

    turns = {name: partial(spent, call) for name, call in variants.items()}
    return _in_turn(lab, title, turns, _CALLS)


def alone(lab: Lab, title: str, variants: Mapping[str, Operation]) -> Micros:
    """Many runs of each operation in turn; what they leave to other threads counts, too."""
    spent = {name: partial(_spent, partial(run, 0)) for name, run in variants.items()}
    return _in_turn(lab, title, spent, _TRANSACTIONS)


def _in_turn(lab: Lab, title: str, variants: Mapping[str, Callable[[int], float]], most: int) -> Micros:
    micros: Micros = {name: [] for name in variants}
    rounds, calls = 2 * lab.rounds, lab.sized(most, most, 5)
    tick = lab.task(title, rounds + 1)
    for number in range(rounds + 1):
        for name in in_turn(variants, number):
            spent = variants[name](calls)
            if number:
                micros[name].append(spent / calls * 1e6)
        tick()
    return micros


def _spent(call: Callable[[], object], calls: int) -> float:
    """Seconds of the process's CPU."""
    began = time.process_time()
    for _ in range(calls):
        call()
    return time.process_time() - began


def driving(statement: TextClause, engine: Engine, row: Callable[[], dict[str, Any]]) -> Call:
    """The statement without SQLAlchemy: by the driver alone."""
    sql = str(statement.compile(dialect=engine.dialect))

    def run(connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.execute(sql, row())

    return run


def as_grid(title: str, micros: Micros) -> Grid:
    """The microseconds themselves, which say how fast the machine is."""
    rows = [[name, f"{median(times):.0f}"] for name, times in micros.items()]
    return Grid(f"Client CPU: {title}", ["", "microseconds"], rows)
