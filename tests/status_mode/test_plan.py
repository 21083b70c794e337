"""PostgreSQL's plan for finding a record."""

import re

import pytest

from inbox import SqlStore
from inbox_outbox_base.databases.postgresql.claiming import add_or_look
from tests.support.database import Database

pytestmark = pytest.mark.mysql

VALUES = {
    "consumer": "'c'",
    "key": "'k'",
    "claim": r"'\x00'",
    "owner": "'o'",
    "digest": "NULL",
    "lease": "60",
}


def test_a_key_is_found_by_the_primary_key_even_in_a_new_table(postgres: Database) -> None:
    """A generic plan that was made while the table was empty uses the primary key, so it still reads one row
    when the table has grown."""
    engine = postgres.engine()
    statement = str(add_or_look(SqlStore(engine).tables).compile(engine))
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement)
    with engine.connect() as connection:
        connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
        connection.exec_driver_sql(f"PREPARE claim AS {numbered}")
        values = ", ".join(VALUES[name] for name in names)
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN EXECUTE claim({values})").scalars())
    assert "Index Scan using inbox_status_pkey" in plan
    assert "Index Cond: ((consumer = ($1)::text) AND (key = ($2)::text))" in plan
    assert "Seq Scan" not in plan
