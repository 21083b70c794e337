"""The business data of acts two and three: a table of departures without a unique key."""

from sqlalchemy import Column, Date, Engine, Integer, MetaData, String, Table, func, select

from examples.demo.flights import KEY, Departure
from examples.demo.totals import Sums, Totals

metadata = MetaData()
departure = Table(
    "demo_departure",
    metadata,
    Column("date", Date, nullable=False),
    Column("carrier", String(3), nullable=False),
    Column("flight", Integer, nullable=False),
    Column("origin", String(3), nullable=False),
    Column("delay", Integer, nullable=False),
)


def reset(engine: Engine) -> None:
    """Drop and create the table."""
    metadata.drop_all(engine)
    metadata.create_all(engine)


def rows(engine: Engine) -> int:
    """The number of rows in the table."""
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(departure)) or 0


def departures(engine: Engine) -> list[Departure]:
    """All rows."""
    columns = (departure.c[name] for name in Departure._fields)
    with engine.connect() as connection:
        found = connection.execute(select(*columns))
        return [Departure(str(on), *others) for on, *others in found]


def keys(engine: Engine) -> int:
    """The number of distinct departures in the table."""
    distinct = select(*(departure.c[name] for name in KEY)).distinct().subquery()
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(distinct)) or 0


def totals(engine: Engine) -> Totals:
    """The totals of the table's rows."""
    return Totals(_sums(engine, "carrier"), _sums(engine, "origin"))


def _sums(engine: Engine, name: str) -> Sums:
    column = departure.c[name]
    summed = select(column, func.count(), func.sum(departure.c.delay)).group_by(column)
    with engine.connect() as connection:
        return {name: (departures, int(delay)) for name, departures, delay in connection.execute(summed)}
