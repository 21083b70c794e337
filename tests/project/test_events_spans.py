"""OpenTelemetry follows a message from its publication to its handler."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import (
    AsyncClaim,
    AsyncListener,
    AsyncStatusInbox,
    Claim,
    Delivery,
    Event,
    EventKind,
    Inbox,
    Listener,
    SqlStore,
    StatusInbox,
    message_id,
)
from inbox_outbox_base.monitoring.events import Hooks
from inbox_outbox_base.monitoring.tracing import Tracing
from outbox import Outbox, Refused, Unavailable
from outbox.rabbitmq import RabbitPublisher
from tests.support.brokers.rabbit_consumers import consuming
from tests.support.brokers.rabbit_queues import Queues
from tests.support.database import Database
from tests.support.outbox_publishers import Recorder, messages, publish, relay
from tests.support.processes import wait_until
from tests.support.telemetry import Telemetry, identity, parent, telemetry

__all__ = ["telemetry"]

pytest_plugins = ["tests.support.brokers.rabbit_fixtures"]

PUBLISHED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans to which a span has links."""
    return [link.context.span_id for link in span.links]


def test_from_the_publication_to_the_handler(
    postgres: Database, queues: Queues, telemetry: Telemetry
) -> None:
    """The relay's span and the consumer's have links to the span in which the message was published; what the
    handler does is inside the consumer's."""
    engine, queue = postgres.engine(), queues.new()
    with telemetry.tracer.start_as_current_span("order") as order, engine.begin() as connection:
        id_ = Outbox().publish(connection, topic=queue, payload=b"1", key="a")
    publisher = RabbitPublisher(queues.url)
    assert relay(engine, publisher, on_event=telemetry.events) == 1
    publisher.close()

    @Inbox("billing", on_event=telemetry.events).handler(engine, key=message_id)
    def book(connection: Connection, message: Delivery) -> None:
        with telemetry.tracer.start_as_current_span("book"):
            pass

    with consuming(queues.url, queue, book, on_event=telemetry.events):
        wait_until(lambda: telemetry.spans(f"process {queue}"))
    (send,), (process,), (inner,) = map(telemetry.spans, (f"send {queue}", f"process {queue}", "book"))
    published = order.get_span_context().span_id
    assert linked(send) == linked(process) == [published]
    assert (parent(send), parent(process), parent(inner)) == (None, None, identity(process))
    assert (send.kind, process.kind) == (SpanKind.CLIENT, SpanKind.CONSUMER)
    common = {"messaging.system": "kafka", "messaging.destination.name": queue, "messaging.message.id": id_}
    assert dict(send.attributes or {}) == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 1,
    }
    assert dict(process.attributes or {}) == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
    }
    assert [event.name for event in process.events] == ["inbox.taken"]
    (consumed,) = telemetry.points("messaging.client.consumed.messages")
    assert (consumed.value, consumed.attributes["messaging.destination.name"]) == (1, queue)
    (delivered,) = telemetry.points("outbox.delivery.duration")
    assert delivered.count == 1
    assert 0 <= delivered.sum < 60


class InTheLoop(Recorder):
    concurrent = False  # called by the relay's own thread


def test_a_batch_that_is_not_taken(sqlite: Database, telemetry: Telemetry) -> None:
    """Its span has links to all messages that were published in a span, and says how many were not taken, and
    why; delayed messages have waited since they were due, and of large batches some count."""
    engine = sqlite.engine()
    with engine.begin() as connection:
        sent = messages(["a1", "b1"], headers={"traceparent": PUBLISHED})
        Outbox().publish_many(connection, [*sent, *messages(["c1"])])
    outcomes = {"b1": [Refused("no")], "c1": [Unavailable("full", 3_600.0)]}
    relay(engine, Recorder(outcomes), on_event=telemetry.events)
    (span,) = telemetry.spans("send orders")
    assert linked(span) == [int(PUBLISHED.split("-")[2], 16)] * 2
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "2 of 3: full"
    assert (span.attributes or {})["error.type"] == "unavailable"
    publish(engine, "d1", delay=0.001)
    relay(engine, InTheLoop(), on_event=telemetry.events)
    (delivered,) = telemetry.points("outbox.delivery.duration")
    assert delivered.count == 2
    publish(engine, *(f"-{number}" for number in range(70)))
    relay(engine, InTheLoop(), on_event=telemetry.events)
    (delivered,) = telemetry.points("outbox.delivery.duration")
    assert 2 + 20 < delivered.count <= 2 + 32
    assert not trace.get_current_span().get_span_context().is_valid


def delivery(key: str) -> Delivery:
    return Delivery(f"id-{key}", "orders", key, b"1", "text/plain", {"traceparent": PUBLISHED}, 1)


def in_threads(database: Database, events: Any, body: Callable[[Delivery], object]) -> None:
    """Run three messages with a listener whose consumer traces them."""
    orders = StatusInbox("orders", store=SqlStore(database.engine()), on_event=events)
    listener = Listener()
    listener.tracing = Tracing(Hooks(events), "processing")

    @orders.handler(key=message_id)
    def handle(_: Claim, message: Delivery) -> None:
        body(message)

    listener.decide([delivery("a"), delivery("a"), delivery("bad")], handle)


def in_tasks(database: Database, events: Any, body: Callable[[Delivery], object]) -> None:
    """The same with tasks."""

    async def scenario() -> None:
        engine = create_async_engine(database.async_url)
        orders = AsyncStatusInbox("orders", store=SqlStore(engine), on_event=events)
        listener = AsyncListener()
        listener.tracing = Tracing(Hooks(events), "processing")

        @orders.handler(key=message_id)
        async def handle(_: AsyncClaim, message: Delivery) -> None:
            await asyncio.sleep(0)
            body(message)

        await listener.decide([delivery("a"), delivery("a"), delivery("bad")], handle)
        await engine.dispose()

    asyncio.run(scenario())


@pytest.mark.parametrize("run", [in_threads, in_tasks])
def test_one_span_in_status_table_mode(
    sqlite: Database, telemetry: Telemetry, run: Callable[..., None]
) -> None:
    """The consumer's span is the handler's too, with its key; a duplicate has its reason, and a failure its
    status."""

    def body(message: Delivery) -> None:
        with telemetry.tracer.start_as_current_span("call"):
            if message.key == "bad":
                raise ValueError("no")

    run(sqlite, telemetry.events, body)
    spans = telemetry.spans("process orders")
    taken, duplicate, bad = sorted(
        spans, key=lambda span: ((span.attributes or {})["messaging.message.id"], span.start_time)
    )
    assert {parent(span) for span in telemetry.spans("call")} == {identity(taken), identity(bad)}
    assert [(span.attributes or {}).get("inbox.key") for span in (taken, duplicate, bad)] == [
        "id-a",
        None,
        "id-bad",
    ]
    assert [event.name for event in duplicate.events] == ["inbox.duplicate"]
    assert (taken.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert all(linked(span) == [int(PUBLISHED.split("-")[2], 16)] for span in spans)
    assert telemetry.running() == 0


def test_what_a_purge_has_deleted(telemetry: Telemetry) -> None:
    """Its rows are counted by consumer."""
    telemetry.events(Event(kind=EventKind.PURGED, consumer="billing", count=70))
    (purged,) = telemetry.points("inbox.purged")
    assert (purged.value, purged.attributes["messaging.consumer.group.name"]) == (70, "billing")
