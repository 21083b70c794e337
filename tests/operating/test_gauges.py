"""The gauges of the overviews: what they say, how often they ask, and what they say without a database."""

import re
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from sqlalchemy import Engine, event, update

import inbox
import outbox
from inbox import Inbox, SqlStore, StatusInbox
from inbox._refusing import recording
from inbox.errors import InvalidOption
from inbox_outbox._operating import gauges
from inbox_outbox._operating.gauges import GAUGES
from inbox_outbox.metrics import OverviewGauges
from outbox import Refused, Unavailable
from tests.support.database import Database
from tests.support.outages import closed
from tests.support.outbox_publishers import TABLES, Recorder, in_every_state, publish, relay
from tests.support.program import ROOT

VERDICTS = ("mismatch", "too_old", "dead")
Points = dict[str, dict[tuple[tuple[str, Any], ...], float]]


class Gauges:
    """Gauges, and what they say."""

    def __init__(self, engines: Any, **options: Any) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        OverviewGauges(engines, meter_provider=self.provider, **options)

    def read(self) -> Points:
        """The numbers of each gauge, by their sorted labels."""
        data = self.reader.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        return {
            metric.name: {
                tuple(sorted((point.attributes or {}).items())): point.value
                for point in metric.data.data_points
                if isinstance(point, NumberDataPoint)
            }
            for metric in found
        }


def labels(**given: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(given.items()))


def test_they_say_what_the_overview_says(migrated: Database) -> None:
    """Every gauge has the number of the overview, with labels; on every database."""
    engine = migrated.engine()
    in_every_state(engine)
    publish(engine, "s1", "z1")
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).where(TABLES.message.c.key == "z").values(bucket=1_000))
        billing = Inbox("billing", record_refusals="always")
        billing.accept_many(connection, ["a", "a"], [b"1", b"2"])
    recording.flush()
    outbox.pause(engine, "sms")
    orders = StatusInbox("orders", store=SqlStore(engine), max_attempts=1)
    with pytest.raises(ValueError, match="no"), orders.claim("x"):
        raise ValueError("no")
    inbox.purge(engine)
    found, said = outbox.overview(engine), Gauges(engine).read()
    states = ("pending", "waiting", "unknown", "held", "delayed", "dead")
    assert said["outbox.messages"] == {labels(state=state): getattr(found, state).number for state in states}
    assert said["db.up"] == {(): 1}
    assert said["outbox.stray"] == {(): 1}
    assert said["outbox.relays.live"] == said["outbox.relays.crowded"] == {(): 0}
    assert said["outbox.buckets.unowned"] == {(): found.buckets}
    assert said["outbox.generations"] == {(): 1}
    assert said["outbox.topics.paused"] == {(): 1}
    assert said["outbox.topics.rejected"] == {(): 0}
    assert said["inbox.purge.age"][labels(consumer="billing")] < 600
    assert said["outbox.oldest.age"].keys() == {(), labels(topic="orders")}
    assert said["outbox.oldest.age"][()] == pytest.approx(found.oldest_age, abs=10)
    assert said["inbox.messages"][labels(consumer="orders", status="dead")] == 1
    refused = {name: said["inbox.refused"][labels(consumer="billing", verdict=name)] for name in VERDICTS}
    assert refused == {"mismatch": 1, "too_old": 0, "dead": 0}
    assert said["inbox.messages"][labels(consumer="orders", status="failed")] == 0
    assert said["inbox.leases.over"][labels(consumer="orders")] == 0
    assert said["inbox.oldest.overdue"][labels(consumer="billing")] == 0
    assert sum(said["db.bytes"].values()) > 0
    known = {each.name for each in GAUGES}
    absent = {"postgresql": set[str](), "sqlite": {"db.dead_rows"}}.get(migrated.name, {"db.dead_rows"})
    assert known - said.keys() <= absent | {"db.oldest_snapshot.age", "inbox.partitions.ahead"}


def test_the_page_lists_them() -> None:
    """docs/monitoring.md has a row for each gauge."""
    page = (ROOT / "docs" / "monitoring.md").read_text().split("## Gauges\n")[1]
    assert re.findall(r"^\| `([\w.]+)`", page, re.MULTILINE) == [each.name for each in GAUGES]


def test_an_estimate_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is not exact has a label, and only the oldest topics have a gauge."""
    monkeypatch.setattr("outbox._operating.overviews.overview._COUNTED", 2)
    monkeypatch.setattr(gauges, "TOPICS", 1)
    publish(engine, "a1", "b1", "c1", topic="mail")
    relay(engine, Recorder(lambda _: Refused("no")))
    publish(engine, "d1", topic="mail")
    relay(engine, Recorder(lambda _: Unavailable("full", 3_600.0)))
    publish(engine, "e1", topic="sms")
    said = Gauges(engine).read()
    assert said["outbox.messages"][labels(state="dead", estimated=True)] == 2
    assert said["outbox.oldest.age"].keys() == {(), labels(topic="mail")}


def test_several_databases_and_one_that_is_away(postgres: Database, sqlite: Database) -> None:
    """Each database's numbers have its name; while one does not answer, its gauges are absent, and the others
    go on. However often they are read, it is asked once in a while."""
    asked: list[str] = []
    engines = {"shop": postgres.engine(), "till": sqlite.engine()}
    event.listen(engines["till"], "begin", lambda _: asked.append("till"))
    both = Gauges(engines, every=3_600)
    assert both.read()["db.up"] == {labels(database="shop"): 1, labels(database="till"): 1}
    once = len(asked)
    both.read()
    assert len(asked) == once > 0
    with closed(postgres):
        said = Gauges(engines).read()
    assert said["db.up"] == {labels(database="shop"): 0, labels(database="till"): 1}
    assert said["outbox.stray"].keys() == {labels(database="till")}
    assert Gauges(engines).read()["db.up"][labels(database="shop")] == 1


def test_a_database_that_hangs(postgres: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The reader waits for it no longer than the timeout, and it is not asked again meanwhile."""
    engine = postgres.engine(pool_size=1, max_overflow=0)
    said = Gauges(engine, timeout=0.1, every=1)
    with engine.connect():
        assert said.read()["db.up"] == {(): 0}
    assert caplog.text.count("no answer within 0.1 seconds") == 1


def test_twice(sqlite: Database) -> None:
    """A meter provider would ignore the second gauges in silence, so they are refused."""
    said = Gauges(sqlite.engine())
    with pytest.raises(InvalidOption, match="give all engines at once"):
        OverviewGauges(sqlite.engine(), meter_provider=said.provider)


@pytest.mark.parametrize(
    "options", [{"engines": "sqlite://"}, {"every": 0.5}, {"every": "1"}, {"timeout": 10}]
)
def test_bad_options(sqlite: Database, options: dict[str, Any]) -> None:
    """The error names the option and its value."""
    with pytest.raises(InvalidOption, match=f"^{next(iter(options))}="):
        OverviewGauges(**{"engines": sqlite.engine(), **options})
