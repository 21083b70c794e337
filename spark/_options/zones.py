"""Time zones: Spark also knows forms that neither Arrow nor Python's tzdata knows, such as GMT+2."""

import re
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from inbox_outbox_base.errors.spark import ColumnMismatch

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d))?(?::?00)?")
_SAME = {"Z": "UTC", "UT": "UTC", "GMT0": "UTC", "EST": "-05:00", "MST": "-07:00", "HST": "-10:00"}
"""Java takes the last three for fixed offsets, tzdata does not."""


@lru_cache(maxsize=100)
def known(zone: str) -> str:
    """The name by which Arrow knows a time zone of a Spark session.

    Raises:
        ColumnMismatch: there is none.
    """
    offset = _OFFSET.fullmatch(zone)
    name = _SAME.get(zone, zone)
    if offset is not None:
        sign, hours, minutes = offset.groups()
        name = f"{sign}{int(hours):02}:{minutes or '00'}"
    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("us", name)))
    except pa.ArrowInvalid:
        raise ColumnMismatch(
            f"spark.sql.session.timeZone={zone!r}: use a name of the tz database, like America/New_York, or "
            "an offset, like +02:00"
        ) from None
    return name


@lru_cache(maxsize=100)
def in_known_zones(schema: pa.Schema) -> pa.Schema:
    """The schema with time zones that Arrow knows.

    Raises as `known`.
    """
    return pa.schema([_known(field) for field in schema])


def _known(field: pa.Field) -> pa.Field:
    """The same field if it has no other zone: a map made anew would lose its names."""
    kind = field.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return field.with_type(pa.timestamp(kind.unit, known(kind.tz)))
    before = [kind.field(place) for place in range(kind.num_fields)]
    after = [_known(each) for each in before]
    return field if after == before else field.with_type(_of(kind, after))


def _of(kind: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        key, item = fields[0].type
        return pa.map_(key, item, kind.keys_sorted)
    return pa.large_list(fields[0]) if pa.types.is_large_list(kind) else pa.list_(fields[0])
