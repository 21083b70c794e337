"""Arrays of the values that Spark sends, for PostgreSQL."""

from typing import Any

import pyarrow as pa

from .types import Case


def listed(case: Case) -> Case:
    """Arrays of these values: all, none, some, and NULL."""
    values = [[*case.values], [], None, [*case.values[1:3], None], [*reversed(case.values)]]
    return _arrays(pa.list_(case.kind), values, case)


def gridded(case: Case) -> Case:
    """Two-dimensional arrays, with NULL among their elements."""
    pairs = [[value, None] for value in case.values]
    kind = pa.large_list(pa.list_(case.kind))
    return _arrays(kind, [pairs, None, [], [[*case.values]], [[value] for value in case.values]], case)


def _arrays(kind: pa.DataType, values: list[Any], case: Case) -> Case:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            return case.shown("postgresql", value)
        return [read(item) for item in value]

    column = case.column("postgresql")
    # psycopg knows no arrays of types that a test has created.
    expression = {'"mood 100%"': "{}::text[]"}.get(column or "", case.expression.get("postgresql", "{}"))
    expression = expression.replace("::float8", "::float8[]")
    return Case(
        kind,
        values,
        {"postgresql": f"{column}[]"} if column else {},
        {"postgresql": read},
        {"postgresql": expression},
    )
