"""Values of every type that Spark sends, and the column types for them on each database."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from sqlalchemy import Engine

from tests.support.database import Database

from .writes import fetched

NEW_YORK = "America/New_York"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXTS = [
    "plain",
    "",
    "\\N",
    "NULL",
    " tab\tnewline\nreturn\rboth\r\n ",
    "back\\slash \\t \\\\ 'single' \"double\" `tick` %s :x",
    "é ß 漢字 🙂 \U0010ffff",
    "z" * 5000,
    None,
]
BYTES = [b"", b"\0", b"a\0b\t\n\r\\'\"", bytes(range(256)), b"\xff\xfe" * 3000, None]
DATES = [
    date.min,
    date(1582, 10, 10),
    date(1969, 12, 31),
    date(1970, 1, 1),
    date(2024, 2, 29),
    date.max,
    None,
]
_SHOWN = [
    "0001-01-01 00:00:00",
    "1883-11-18 12:03:58.999999",
    "1969-12-31 23:59:59.999999",
    "1970-01-01 00:00:00",
    "2021-03-14 02:30:00",
    "9999-12-31 23:59:59.999999",
]
CLOCKS = [*map(datetime.fromisoformat, _SHOWN), None]
"""What clocks without a time zone show; one of them never did in New York."""
INSTANTS = [
    datetime(1970, 1, 2, 3, 4, 5, 6, UTC),
    datetime(2021, 3, 14, 6, 59, 59, 999999, UTC),
    datetime(2021, 3, 14, 7, tzinfo=UTC),
    datetime(2021, 11, 7, 5, 30, tzinfo=UTC),
    datetime(2021, 11, 7, 6, 30, tzinfo=UTC),
    datetime(2038, 1, 19, 3, 14, 7, 999999, UTC),
    None,
]
"""Around the two hours in which New York changes its clocks, and to the ends of MySQL's TIMESTAMP."""
FAR_INSTANTS = [datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, 59, 999999, UTC)]
TIMES = [time(0), time(12, 34, 56, 789012), time(23, 59, 59, 999999), None]
LISTS = [[1, None, -3], [], None]
STRUCT = pa.struct([("name", pa.string()), ("amount", pa.decimal128(10, 2)), ("tags", pa.list_(pa.string()))])
STRUCTS = [{"name": 'O"Brien \\ 🙂', "amount": Decimal("1.50"), "tags": ["a", None]}, None]
MAPS = [[("a", 1.5), ("b", None)], [], None]

Reader = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """Values of a type, and the column type for them by database (or "any")."""

    kind: pa.DataType
    values: Sequence[Any]
    columns: Mapping[str, str]
    read: Mapping[str, Reader] = field(default_factory=dict)
    """How what the driver returns becomes the value again, by database."""
    expression: Mapping[str, str] = field(default_factory=dict)
    """What to select, where the column itself is not shown with all its digits."""

    def column(self, database: str) -> str | None:
        """The column type that stores the values on a database."""
        return self.columns.get(database, self.columns.get("any")) or None

    def selected(self, database: str, column: str) -> str:
        """The expression to select for a column."""
        return self.expression.get(database, "{}").format(column)

    def shown(self, database: str, value: Any) -> Any:
        """A value that the driver has returned, in the form in which it was given."""
        if value is None:
            return None
        return self.read.get(database, self.read.get("any", _as_it_is))(value)


def stored(engine: Engine, database: Database, name: str, case: Case) -> list[Any]:
    """The values in this column of the table `target`."""
    quoted = engine.dialect.identifier_preparer.quote_identifier(name)
    query = f"SELECT {case.selected(database.name, quoted)} FROM target ORDER BY id"
    return [case.shown(database.name, value) for (value,) in fetched(engine, query)]


def _as_it_is(value: Any) -> Any:
    return value


def on_all(postgresql: str, mysql: str, sqlite: str, **others: str) -> dict[str, str]:
    """A column on each database."""
    return {"postgresql": postgresql, "mysql": mysql, "mariadb": mysql, "sqlite": sqlite, **others}


def _utc(value: Any) -> Any:
    """An instant, converted from what a database without time zones returns."""
    parsed = datetime.fromisoformat(value) if isinstance(value, str) else value
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _time(value: Any) -> Any:
    """A time, converted from the duration that MySQL's drivers return."""
    return (EPOCH + value).time() if isinstance(value, timedelta) else time.fromisoformat(value)


def _whole_numbers(bits: int) -> list[Any]:
    return [-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1, None]


def _decimals(precision: int, scale: int) -> list[Any]:
    """The largest and smallest numbers, the smallest steps, and numbers of every length."""
    ones = [int("1" * length) for length in range(1, precision + 1, 3)]
    tens = [10**power for power in range(0, precision, 4)]
    whole = [0, 10**precision - 1, *ones, *tens, 10_000 * (10 ** (precision // 2)) % 10**precision]
    return [*(Decimal(f"{sign}{each}E-{scale}") for each in whole for sign in ("", "-")), None]


def _decimal(precision: int, scale: int, **others: str) -> Case:
    columns = {"any": f"decimal({precision},{scale})", "sqlite": "text", **others}
    kind = pa.decimal128(precision, scale)
    return Case(kind, _decimals(precision, scale), columns, {"sqlite": Decimal})


FLOATS = [0.0, -0.0, 0.5, -1.5, 0.1, 1e15, 123456789.125, 3.0, None]
ENDS = [1.7976931348623157e308, 5e-324, -2.2250738585072014e-308]
SINGLES = [0.0, 0.5, 0.10000000149011612, 16777216.0, 3.4028234663852886e38, 1.1754943508222875e-38, None]
SINGLE_COLUMN = {"postgresql": "{}::float8", "mysql": "{} + 0e0", "mariadb": "CAST({} AS DOUBLE)"}
"""Some show no more digits than the type is good for, or even less."""

CASES: dict[str, Case] = {
    "boolean": Case(pa.bool_(), [True, False, None], {"any": "boolean"}, {"any": bool}),
    "boolean in a bit": Case(
        pa.bool_(),
        [True, False, None],
        {"mysql": "bit(1)", "mariadb": "bit(1)"},
        {"any": lambda v: v == b"\1"},
    ),
    "byte": Case(pa.int8(), _whole_numbers(8), on_all("smallint", "tinyint", "tinyint")),
    "short": Case(pa.int16(), _whole_numbers(16), {"any": "smallint"}),
    "int": Case(pa.int32(), _whole_numbers(32), {"any": "integer"}),
    "long": Case(pa.int64(), _whole_numbers(64), {"any": "bigint"}),
    "int in a long": Case(pa.int32(), _whole_numbers(32), {"any": "bigint"}),
    "int in a double": Case(pa.int32(), _whole_numbers(32), {"any": "double precision"}),
    "long in a decimal": Case(
        pa.int64(), _whole_numbers(64), on_all("numeric(20,0)", "decimal(20,0)", "numeric")
    ),
    "long in a short": Case(pa.int64(), [-(2**15), 2**15 - 1, None], {"any": "smallint"}),
    "unsigned": Case(
        pa.int64(), [0, 2**63 - 1, None], {"mysql": "bigint unsigned", "mariadb": "bigint unsigned"}
    ),
    "float": Case(pa.float32(), SINGLES, on_all("real", "float", "real"), expression=SINGLE_COLUMN),
    "float in a double": Case(pa.float32(), SINGLES, {"any": "double precision"}),
    "double": Case(pa.float64(), [*FLOATS, *ENDS], {"any": "double precision"}),
    "infinity": Case(
        pa.float64(), [float("inf"), float("-inf")], {"postgresql": "double precision", "sqlite": "double"}
    ),
    "infinity, single": Case(
        pa.float32(), [float("inf"), float("-inf"), 0.5], {"postgresql": "real", "sqlite": "real"}
    ),
    "decimal(10,2)": _decimal(10, 2),
    "decimal(38,0)": _decimal(38, 0),
    "decimal(38,18)": _decimal(38, 18),
    "decimal(38,30)": _decimal(38, 30),
    "decimal(38,38)": _decimal(38, 38, any="", postgresql="numeric(38,38)", mariadb="decimal(38,38)"),
    "decimal(9,9)": _decimal(9, 9),
    "decimal without a limit": Case(pa.decimal128(38, 10), _decimals(38, 10), {"postgresql": "numeric"}),
    "decimal in a wider one": Case(
        pa.decimal128(12, 3),
        _decimals(12, 3),
        on_all("numeric(40,5)", "decimal(40,5)", "varchar(50)"),
        {"sqlite": Decimal},
    ),
    "whole decimal in a long": Case(pa.decimal128(18, 0), _decimals(18, 0), {"any": "bigint"}),
    "text": Case(pa.string(), TEXTS, on_all("text", "longtext", "text")),
    "text in a varchar": Case(pa.string(), TEXTS, {"any": "varchar(5000)"}),
    'large "text", `': Case(pa.large_string(), TEXTS, on_all("text", "mediumtext", "text")),
    "text with NUL": Case(pa.string(), ["a\0b", "\0"], on_all("", "longtext", "text")),
    "nothing but NULL": Case(pa.null(), [None, None], on_all("text", "text", "text")),
    "binary": Case(pa.binary(), BYTES, on_all("bytea", "longblob", "blob")),
    "binary in a varbinary": Case(pa.large_binary(), BYTES, on_all("bytea", "varbinary(6000)", "blob")),
    "binary of one length": Case(
        pa.binary(), [b"\0" * 16, bytes(range(16)), None], {"mysql": "binary(16)", "mariadb": "binary(16)"}
    ),
    "date": Case(pa.date32(), DATES, {"any": "date"}, {"sqlite": date.fromisoformat}),
    "date in a text": Case(pa.date32(), DATES, {"sqlite": "text"}, {"sqlite": date.fromisoformat}),
    "clock": Case(
        pa.timestamp("us"),
        CLOCKS,
        on_all("timestamp", "datetime(6)", "datetime"),
        {"sqlite": datetime.fromisoformat},
    ),
    "clock without fractions": Case(
        pa.timestamp("us"),
        [*map(datetime.fromisoformat, ("2024-02-29 23:59:59", "1970-01-01 00:00:00")), None],
        on_all("timestamp(0)", "datetime", "datetime"),
        {"sqlite": datetime.fromisoformat},
    ),
    "instant": Case(
        pa.timestamp("us", NEW_YORK),
        INSTANTS,
        on_all("timestamptz", "timestamp(6) NULL", "timestamp"),
        {"any": _utc},
    ),
    "far instant": Case(
        pa.timestamp("us", NEW_YORK),
        FAR_INSTANTS,
        {"postgresql": "timestamptz", "sqlite": "text"},
        {"any": _utc},
    ),
    "instant on a clock": Case(
        pa.timestamp("us", NEW_YORK),
        INSTANTS[:3] + INSTANTS[4:],  # two instants have one wall clock, and it means the second of them
        {"postgresql": "timestamp", "mysql": "datetime(6)", "mariadb": "datetime(6)"},
        {"any": lambda value: value.replace(tzinfo=ZoneInfo(NEW_YORK), fold=1).astimezone(UTC)},
    ),
    "instant in nanoseconds": Case(
        pa.timestamp("ns", "UTC"),
        INSTANTS,
        on_all("timestamptz", "timestamp(6) NULL", "timestamp"),
        {"any": _utc},
    ),
    "time": Case(
        pa.time64("us"),
        TIMES,
        on_all("time", "time(6)", "time"),
        {"mysql": _time, "mariadb": _time, "sqlite": _time},
    ),
    "time in nanoseconds": Case(
        pa.time64("ns"),
        TIMES,
        on_all("time", "time(6)", "text"),
        {"mysql": _time, "mariadb": _time, "sqlite": _time},
    ),
    "interval": Case(
        pa.duration("us"),
        [timedelta(0), timedelta(days=-1, microseconds=1), timedelta(days=400, hours=30), None],
        {"postgresql": "interval"},
    ),
    "array": Case(pa.list_(pa.int32()), LISTS, on_all("jsonb", "json", "json"), {"any": _json}),
    "struct": Case(
        STRUCT,
        STRUCTS,
        on_all("jsonb", "json", "text"),
        {"any": lambda value: {**_json(value), "amount": Decimal(_json(value)["amount"])}},
    ),
    "map": Case(
        pa.map_(pa.string(), pa.float64()),
        MAPS,
        on_all("json", "longtext", "json"),
        {"any": lambda value: list(_json(value).items())},
    ),
    "uuid": Case(
        pa.string(),
        ["12345678-1234-5678-1234-567812345678", None],
        {"postgresql": "uuid", "mariadb": "uuid"},
        {"any": str},
    ),
    "enum": Case(
        pa.string(),
        ["happy", "it's", None],
        {"postgresql": '"mood 100%"', "mysql": "enum('happy','it''s')", "mariadb": "enum('happy','it''s')"},
    ),
    "inet": Case(
        pa.string(), ["2001:db8::1", None], {"postgresql": "inet", "mariadb": "inet6"}, {"any": str}
    ),
    "json in a text": Case(
        pa.string(),
        ['{"a": [1, 2]}', None],
        on_all("jsonb", "json", "json"),
        {"any": lambda value: json.dumps(_json(value))},
    ),
}
