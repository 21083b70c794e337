"""The business data: departures and delays of each airline and each airport.

Nothing here would detect a message that is counted twice, or never.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    Update,
    bindparam,
    insert,
    select,
    update,
)

from examples.demo.flights import Departure

Sums = dict[str, tuple[int, int]]
"""By name: the number of departures, and the minutes of delay."""

metadata = MetaData()


def _table(name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("name", String(3), primary_key=True),
        Column("departures", BigInteger, nullable=False),
        Column("delay", BigInteger, nullable=False),
    )


airline = _table("demo_airline")
airport = _table("demo_airport")


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of every airline and every airport."""

    airlines: Sums
    airports: Sums

    @property
    def departures(self) -> int:
        """The number of all airlines' departures."""
        return sum(departures for departures, _ in self.airlines.values())

    @property
    def delay(self) -> int:
        """The delay at all airports, in minutes."""
        return sum(delay for _, delay in self.airports.values())


def of(departures: Iterable[Departure]) -> Totals:
    """The totals if each of these counts once."""
    airlines: Sums = defaultdict(lambda: (0, 0))
    airports: Sums = defaultdict(lambda: (0, 0))
    for departure in departures:
        for sums, name in ((airlines, departure.carrier), (airports, departure.origin)):
            count, delay = sums[name]
            sums[name] = count + 1, delay + departure.delay
    return Totals(dict(airlines), dict(airports))


def add(connection: Connection, departures: Iterable[Departure]) -> None:
    """Add departures to the totals, in the caller's transaction: called twice, it counts twice."""
    more = of(departures)
    for table, sums in ((airline, more.airlines), (airport, more.airports)):
        # Always in the same order: all workers share these few rows, and must not deadlock.
        rows = [{"this": name, "count": sums[name][0], "minutes": sums[name][1]} for name in sorted(sums)]
        if rows:
            connection.execute(_ADD[table.name], rows)


def reset(engine: Engine, names: Totals) -> None:
    """Drop and create the tables, with a row of zeros for each airline and airport of `names`."""
    metadata.drop_all(engine)
    metadata.create_all(engine)
    with engine.begin() as connection:
        for table, sums in ((airline, names.airlines), (airport, names.airports)):
            connection.execute(insert(table), [{"name": name, "departures": 0, "delay": 0} for name in sums])


def read(engine: Engine) -> Totals:
    """The totals in the database."""
    with engine.connect() as connection:
        return Totals(*(_read(connection, table) for table in (airline, airport)))


def _read(connection: Connection, table: Table) -> Sums:
    rows = connection.execute(select(table.c.name, table.c.departures, table.c.delay))
    return {name: (departures, delay) for name, departures, delay in rows}


def wrong(found: Sums, expected: Sums) -> int:
    """The number of names with unexpected totals."""
    return sum(found.get(name) != expected.get(name) for name in found.keys() | expected.keys())


def _add(table: Table) -> Update:
    departures = table.c.departures + bindparam("count")
    delay = table.c.delay + bindparam("minutes")
    return update(table).where(table.c.name == bindparam("this")).values(departures=departures, delay=delay)


_ADD = {table.name: _add(table) for table in (airline, airport)}
