"""Rows made by Spark, about 100 bytes each, and rows with the same keys made by the database."""

from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Connection, text

from ._business import CONSUMER

PARTITIONS = 4
TARGET = "result"
KEYLESS = "result_without_key"
"""The same columns, and no primary key."""
TARGET_DDL = f"""
    CREATE TABLE {TARGET} (
        key text PRIMARY KEY, number bigint NOT NULL, amount double precision NOT NULL, note text NOT NULL
    ) WITH (autovacuum_enabled = off)
"""

_KEYS = {
    "ordered": "concat('order-', lpad({id}, 30, '0'))",
    "random": "concat(md5({id}), '-key')",
}
"""Expressions for a key of 36 characters from a number, valid in both Spark and PostgreSQL."""
KINDS = tuple(_KEYS)


def rows(
    session: SparkSession, kind: str, count: int, *, first: int = 0, partitions: int = PARTITIONS
) -> DataFrame:
    """`count` rows, numbered from `first` on."""
    key = _KEYS[kind].format(id="cast(id AS string)")
    return session.range(first, first + count, numPartitions=partitions).selectExpr(
        f"{key} AS key", "id AS number", "id * 0.5D AS amount", "repeat('n', 48) AS note"
    )


def write_before(connection: Connection, kind: str, count: int, every: int) -> None:
    """Write every n-th of `count` rows, keys and results, as if an earlier job had written them."""
    key = _KEYS[kind].format(id="cast(id AS text)")
    numbers = {"last": count - 1, "every": every, "consumer": CONSUMER}
    results = f"""
        INSERT INTO {TARGET}
        SELECT {key}, id, id * 0.5, repeat('n', 48) FROM generate_series(0, :last, :every) AS id
    """
    keys = f"""
        INSERT INTO inbox_message (consumer, key, claim)
        SELECT :consumer, key, decode('00112233445566778899aabbccddeeff', 'hex') FROM {TARGET}
        WHERE number BETWEEN 0 AND :last AND number % :every = 0
    """
    connection.execute(text(results), numbers)
    connection.execute(text(keys), numbers)
