"""The Spark code in README.md and docs/ runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from tests.support.database import Database
from tests.support.documented_code import blocks, name, pages_that_need, reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.support.spark.session"]


@pytest.mark.parametrize("page", pages_that_need("spark"), ids=name)
def test_the_code_for_spark_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    postgres: Database,
    spark_session: "SparkSession",
) -> None:
    """All code blocks of a page, batch and streaming, leave each key in the table once."""
    monkeypatch.chdir(tmp_path)
    engine = postgres.engine()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE flights (flight_id text)"))
    flights = spark_session.createDataFrame([("AA1",), ("UA2",), ("AA1",)], "flight_id string")
    flights.write.json(str(tmp_path / "in"))
    stream = spark_session.readStream.schema("flight_id string").json(str(tmp_path / "in"))
    names = reader(tmp_path) | {"spark": spark_session, "df": flights, "stream": stream}
    at, password = postgres.url, postgres.url.password or "trusted"
    addresses = {
        "host/database": f"{at.host}:{at.port}/{at.database}?user={at.username}&password={password}",
        '"loader"': f'"{at.username}"',
        '"..."': f'"{password}"',
        "/checkpoints": str(tmp_path / "checkpoints"),
    }
    for block in blocks(page):
        block.run(names, "spark", addresses)
        for query in spark_session.streams.active:
            query.processAllAvailable()
            query.stop()
    with engine.connect() as connection:
        keys = connection.scalars(text("SELECT flight_id FROM flights")).all()
    assert sorted(keys) == ["AA1", "UA2"]
