"""OpenTelemetry gets one span for each handler, and metrics that add up, on every database."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics.export import HistogramDataPoint
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import AsyncStatusInbox, Claim, Event, EventKind, SqlStore, Verdict
from inbox.errors import LeaseLost
from inbox.otel import OtelEvents
from inbox.schema import tables
from outbox import Refused
from tests.examples.test_demo import until
from tests.support.database import Database
from tests.support.outbox_publishers import Recorder, publish, relay
from tests.support.program import run
from tests.support.telemetry import Telemetry, identity, names, parent, telemetry

__all__ = ["telemetry"]


def test_a_span_around_the_handler(sqlite: Database, telemetry: Telemetry) -> None:
    """The message's span is a child of the surrounding span, and the parent of the handler's spans and
    steps."""
    inbox = telemetry.inbox(sqlite)
    with telemetry.tracer.start_as_current_span("receive") as receive:
        with inbox.claim("order-1") as claim:
            assert telemetry.running() == 1
            with telemetry.tracer.start_as_current_span("call"):
                claim.step("lock-stock", lambda: "lock-1")
            token = claim.token
        assert trace.get_current_span() is receive
    (process,), (call,), (step,) = map(telemetry.spans, ("process orders", "call", "step lock-stock"))
    assert parent(process) == receive.get_span_context().span_id
    assert parent(call) == parent(step) == identity(process)
    assert (process.kind, process.status.status_code) == (SpanKind.CONSUMER, StatusCode.UNSET)
    assert dict(process.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.consumer.group.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "inbox.key": "order-1",
        "inbox.attempt": 1,
        "inbox.token": token,
        "inbox.event": "completed",
    }


def test_metrics_add_up(sqlite: Database, telemetry: Telemetry) -> None:
    """Every event is counted once; handlers and steps have durations in seconds; no handler is left
    running."""
    inbox = telemetry.inbox(sqlite)
    with inbox.claim("order-1") as claim:
        claim.step("lock-stock", lambda: None)
        with inbox.claim("order-1") as other:
            assert other.verdict is Verdict.IN_FLIGHT
    with inbox.claim("order-1"):
        pass
    assert telemetry.counted() == {
        "claimed": 1,
        "step_done": 1,
        "in_flight": 1,
        "completed": 1,
        "duplicate": 1,
    }
    assert telemetry.running() == 0
    (process,), (step,) = map(telemetry.points, ("messaging.process.duration", "inbox.step.duration"))
    assert isinstance(process, HistogramDataPoint)
    assert (process.count, step.count) == (1, 1)
    assert 0 < step.sum < process.sum < 60
    assert process.explicit_bounds[0] == 0.005
    assert process.attributes == {
        "messaging.system": "kafka",
        "messaging.consumer.group.name": "orders",
        "messaging.operation.name": "process",
    }
    assert step.attributes is not None
    assert step.attributes["inbox.step"] == "lock-stock"


def test_errors_set_the_status(sqlite: Database, telemetry: Telemetry) -> None:
    """A failed attempt sets the span's status to an error with its text; the attempts of one key have
    different numbers."""
    inbox = telemetry.inbox(sqlite, max_attempts=2)
    for _ in range(2):
        with pytest.raises(OSError, match="no answer"), inbox.claim("order-1"):
            raise OSError("no answer")
    first, second = telemetry.spans("process orders")
    assert first.status.status_code is second.status.status_code is StatusCode.ERROR
    assert first.status.description == "OSError: no answer"
    found = [
        (span.attributes or {})[name] for span in (first, second) for name in ("inbox.attempt", "error.type")
    ]
    assert found == [1, "failed", 2, "dead"]
    durations = {point.attributes["error.type"] for point in telemetry.points("messaging.process.duration")}
    assert durations == {"failed", "dead"}
    assert telemetry.running() == 0


def test_a_message_that_is_not_run(sqlite: Database, telemetry: Telemetry) -> None:
    """A message that does not run has no span; the surrounding span gets an event with the reason."""
    inbox = telemetry.inbox(sqlite)
    with inbox.claim("order-1"):
        pass
    with telemetry.tracer.start_as_current_span("receive"), inbox.claim("order-1") as claim:
        assert claim.verdict is Verdict.DUPLICATE
    assert len(telemetry.spans("process orders")) == 1
    (receive,) = telemetry.spans("receive")
    assert names(receive) == ["inbox.duplicate"]


def test_a_claim_that_is_lost(sqlite: Database, telemetry: Telemetry) -> None:
    """If a heartbeat thread finds the claim lost, the span shows it, and ends when the handler ends."""
    inbox = telemetry.inbox(sqlite, lease=0.3)
    before = trace.get_current_span()

    def lose(claim: Claim) -> None:
        with sqlite.engine().begin() as connection:
            connection.execute(delete(tables().status))
        until(lambda: claim.lost, "the heartbeat has not noticed")
        assert telemetry.running() == 1
        claim.step("lock-stock", lambda: None)

    with pytest.raises(LeaseLost), inbox.claim("order-1") as claim:
        lose(claim)
    assert trace.get_current_span() is before
    (process,) = telemetry.spans("process orders")
    assert "inbox.lost" in names(process)
    assert process.status.status_code is StatusCode.ERROR
    assert (process.attributes or {})["inbox.event"] == "abandoned"
    assert telemetry.counted()["lost"] == telemetry.counted()["abandoned"] == 1
    assert telemetry.running() == 0


def test_a_refused_write_is_shown(sqlite: Database, telemetry: Telemetry) -> None:
    """If the record is gone when the handler ends, the span and the counter show the rejected write."""
    inbox = telemetry.inbox(sqlite, heartbeat=False)
    with pytest.raises(LeaseLost), inbox.claim("order-1"), sqlite.engine().begin() as connection:
        connection.execute(delete(tables().status))
    (process,) = telemetry.spans("process orders")
    assert names(process) == ["inbox.fenced_write", "inbox.lost"]
    assert telemetry.counted()["fenced_write"] == 1
    assert telemetry.running() == 0


def test_threads_do_not_mix(postgres: Database, telemetry: Telemetry) -> None:
    """Handlers that run at the same time in several threads have their own spans, with and without a key."""
    inbox = telemetry.inbox(postgres, missing_key="run")
    together = Barrier(4, timeout=30)

    def handle(key: str | None) -> None:
        with inbox.claim(key):
            together.wait()
            telemetry.tracer.start_span(f"call {key}").end()
            together.wait()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(handle, ["a", "b", None, None]))
    owners = {
        identity(span): (span.attributes or {})["inbox.key"] for span in telemetry.spans("process orders")
    }
    for key in ("a", "b"):
        (call,) = telemetry.spans(f"call {key}")
        assert owners[parent(call) or 0] == key
    without = [parent(call) for call in telemetry.spans("call None")]
    assert len(set(without)) == 2
    assert {owners[found or 0] for found in without} == {""}
    assert telemetry.running() == 0


def test_tasks_do_not_mix(postgres: Database, telemetry: Telemetry) -> None:
    """Tasks that take turns in one thread have their own spans."""
    inbox = telemetry.inbox(postgres)

    async def handle(key: str, together: asyncio.Barrier) -> None:
        with inbox.claim(key):
            await together.wait()
            telemetry.tracer.start_span(f"call {key}").end()
            await together.wait()

    async def both() -> None:
        together = asyncio.Barrier(2)
        await asyncio.gather(handle("a", together), handle("b", together))

    asyncio.run(both())
    owners = {
        identity(span): (span.attributes or {})["inbox.key"] for span in telemetry.spans("process orders")
    }
    found = [owners[parent(telemetry.spans(f"call {key}")[0]) or 0] for key in ("a", "b")]
    assert found == ["a", "b"]


def test_asynchronous_handlers_have_their_spans(sqlite: Database, telemetry: Telemetry) -> None:
    """With `AsyncStatusInbox` the handler's spans are children of the message's span, the next message's span
    is not one of them, and a handler cancelled for a lost claim is not left running."""

    async def handle(inbox: AsyncStatusInbox, key: str) -> None:
        async with inbox.claim(key) as claim:
            await claim.step("lock-stock", telemetry.tracer.start_span(f"call {key}").end)
            if key == "lost":
                with sqlite.engine().begin() as connection:
                    connection.execute(delete(tables().status))
                await asyncio.sleep(60)

    async def scenario() -> None:
        engine = create_async_engine(sqlite.async_url)
        inbox = AsyncStatusInbox("orders", store=SqlStore(engine), lease=2, on_event=telemetry.events)
        for key in ("a", "b"):
            await handle(inbox, key)
        with pytest.raises(LeaseLost):
            await handle(inbox, "lost")
        assert not trace.get_current_span().get_span_context().is_valid
        await engine.dispose()

    asyncio.run(scenario())
    spans = {(span.attributes or {})["inbox.key"]: span for span in telemetry.spans("process orders")}
    assert {key: parent(span) for key, span in spans.items()} == {"a": None, "b": None, "lost": None}
    for key, span in spans.items():
        assert parent(telemetry.spans(f"call {key}")[0]) == identity(span)
    assert "inbox.lost" in names(spans["lost"])
    assert spans["lost"].status.status_code is StatusCode.ERROR
    assert telemetry.running() == 0


def test_events_of_other_parts_are_counted(telemetry: Telemetry) -> None:
    """A relay's batch counts as many messages as it has, by topic; a message that was taken has a
    duration."""
    with telemetry.tracer.start_as_current_span("receive"):
        telemetry.events(Event(kind=EventKind.SENT, topic="orders", count=50))
        telemetry.events(Event(kind=EventKind.TAKEN, consumer="billing", key="order-1", seconds=0.25))
    sent, taken = sorted(telemetry.points("inbox.events"), key=lambda point: -point.value)
    assert (sent.value, taken.value) == (50, 1)
    assert dict(sent.attributes) == {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "inbox.event": "sent",
    }
    (duration,) = telemetry.points("messaging.process.duration")
    assert (duration.sum, duration.attributes["messaging.consumer.group.name"]) == (0.25, "billing")
    (receive,) = telemetry.spans("receive")
    assert names(receive) == ["inbox.sent", "inbox.taken"]
    assert dict(receive.events[0].attributes or {}) == {
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 50,
    }


def test_several_share_a_meter_provider(telemetry: Telemetry) -> None:
    """Their events are counted together; beyond a limit of numbers, by kind only, and none is lost."""
    other = OtelEvents(system="nats", meter_provider=telemetry.metrics)
    telemetry.events(Event(kind=EventKind.TAKEN, consumer="a"))
    other(Event(kind=EventKind.TAKEN, consumer="a"))
    counts = {point.attributes["messaging.system"]: point.value for point in telemetry.points("inbox.events")}
    assert counts == {"kafka": 1, "nats": 1}
    for number in range(2_100):
        other(Event(kind=EventKind.TAKEN, consumer=f"c{number}"))
    points = telemetry.points("inbox.events")
    assert len(points) < 2_005
    assert sum(point.value for point in points) == 2_102


def test_what_a_relay_has_sent(sqlite: Database, telemetry: Telemetry) -> None:
    """Messages and batches are counted by topic and, unless accepted, by outcome."""
    engine = sqlite.engine()
    publish(engine, "a1", "b1", "c1")
    relay(engine, Recorder({"b1": [Refused("no")]}), on_event=telemetry.events)
    assert {
        (point.attributes["messaging.destination.name"], point.attributes.get("error.type")): point.value
        for point in telemetry.points("messaging.client.sent.messages")
    } == {("orders", None): 2, ("orders", "refused"): 1}
    durations = telemetry.points("messaging.client.operation.duration")
    assert {point.attributes["messaging.operation.type"] for point in durations} == {"send"}
    assert all(point.count == 1 for point in durations)


def test_the_inbox_works_without_opentelemetry() -> None:
    """Only `inbox.otel` needs OpenTelemetry; `import inbox` does not import it."""
    script = (
        "import sys; sys.modules['opentelemetry'] = None; import inbox; print('inbox.otel' in sys.modules)"
    )
    done = run([sys.executable, "-c", script])
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
