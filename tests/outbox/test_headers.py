"""Headers, trace context and CloudEvents attributes: what a message says about its origin."""

import json
import sys
from datetime import datetime
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox import Envelope, Message, Outbox
from outbox.errors import InvalidMessage
from tests.support.cases import case
from tests.support.database import Database
from tests.support.program import run
from tests.support.published import TOPIC, WAYS, Way, relayed

TRACER = TracerProvider().get_tracer("test")


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """A database with an outbox."""
    return postgres.engine()


@pytest.fixture
def telling() -> Outbox:
    """An outbox that adds the attributes of CloudEvents to its messages."""
    return Outbox(cloudevents="/shop")


def sent(engine: Engine, outbox: Outbox, **given: Any) -> Envelope:
    """Publish one message and return it as it is sent."""
    with engine.begin() as connection:
        outbox.publish(connection, TOPIC, "a", **given)
    (found,) = relayed(engine)
    return found


def test_headers_come_through(migrated: Database) -> None:
    """Header names and values can be any text, in any number, and are sent unchanged."""
    headers = {
        "a": "",
        "Ä": "🙂",
        "b\n": "\t\r\n",
        '"': '\\"',
        "empty": " ",
        **{f"n{n}": str(n) for n in range(100)},
    }
    assert sent(migrated.engine(), Outbox(), headers=headers).headers == headers


def test_headers_may_change_afterwards(engine: Engine) -> None:
    """The headers are those at the time of publishing, even if the caller changes the mapping before its
    Session commits."""
    headers = {"a": "1"}
    with Session(engine) as session:
        Outbox().publish(session, TOPIC, "a", headers=headers)
        headers["a"] = "2"
        session.commit()
    assert [message.headers for message in relayed(engine)] == [{"a": "1"}]
    assert headers == {"a": "2"}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_traceparent_names_the_span_of_publish(engine: Engine, way: Way) -> None:
    """`traceparent` names the span that was current when the message was published, not when it was
    committed; messages of `publish_many` have it, too."""
    outbox = Outbox()
    with TRACER.start_as_current_span("commits"), way(engine) as handle:
        with TRACER.start_as_current_span("publishes") as span:
            outbox.publish(handle, TOPIC, "a", headers={"a": "1"})
        with TRACER.start_as_current_span("publishes many") as other:
            outbox.publish_many(handle, [Message(TOPIC, "b"), Message(TOPIC, "c")])
    first, *rest = relayed(engine)
    assert first.headers == {"a": "1", "traceparent": traceparent(span)}
    assert [message.headers for message in rest] == [{"traceparent": traceparent(other)}] * 2


def traceparent(span: trace.Span) -> str:
    """The `traceparent` header of the W3C recommendation."""
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def test_the_trace_state_is_told(engine: Engine) -> None:
    """`tracestate` and the sampling flag are sent, too."""
    parent = SpanContext(
        7, 8, is_remote=True, trace_flags=TraceFlags(0), trace_state=TraceState([("a", "b")])
    )
    with trace.use_span(NonRecordingSpan(parent)):
        message = sent(engine, Outbox())
    assert message.headers == {"traceparent": f"00-{7:032x}-{8:016x}-00", "tracestate": "a=b"}


def test_without_a_span_there_is_none(engine: Engine) -> None:
    """A message that is published outside any span, or by an outbox with `trace=False`, has no trace
    headers."""
    assert sent(engine, Outbox()).headers == {}
    with TRACER.start_as_current_span("publishes"):
        assert sent(engine, Outbox(trace=False)).headers == {}


def test_a_header_of_one_s_own_comes_first(engine: Engine, telling: Outbox) -> None:
    """A `traceparent` header or CloudEvents attribute in the message itself overrides the generated one."""
    given = {"traceparent": "mine", "ce_type": "order.placed", "ce_dataschema": "/schema"}
    with TRACER.start_as_current_span("publishes"):
        headers = sent(engine, telling, headers=given).headers
    assert given.items() <= headers.items()


def test_baggage_is_told(engine: Engine) -> None:
    """The headers of this process's OpenTelemetry propagators are sent, which by default includes baggage."""
    token = context.attach(baggage.set_baggage("tenant", "ä"))
    try:
        message = sent(engine, Outbox())
    finally:
        context.detach(token)
    assert message.headers == {"baggage": "tenant=%C3%A4"}


@pytest.mark.parametrize("key", ["order-42", None])
def test_cloud_events(engine: Engine, telling: Outbox, key: str | None) -> None:
    """Messages have the attributes of CloudEvents 1.0: id, source, type and time, and the key as both subject
    and partition key."""
    message = sent(engine, telling, key=key)
    headers = dict(message.headers)
    told_at = datetime.fromisoformat(headers.pop("ce_time"))
    assert told_at.tzinfo is not None
    assert abs((told_at - message.created_at).total_seconds()) < 3600
    assert headers == {
        "ce_specversion": "1.0",
        "ce_id": message.id,
        "ce_source": "/shop",
        "ce_type": TOPIC,
        **({"ce_subject": key, "ce_partitionkey": key} if key else {}),
    }


def test_the_type_of_an_event(engine: Engine) -> None:
    """The event's type is the message's own, otherwise the outbox's, otherwise the topic."""
    plain, typed = Outbox(cloudevents="/shop"), Outbox(cloudevents="/shop", event_type="shop.order")
    with engine.begin() as connection:
        typed.publish(connection, "a", "1", event_type="order.paid")
        typed.publish_many(connection, [Message("b", "1"), Message("c", "1", event_type="order.sent")])
        plain.publish(connection, "d", "1")
    told = {message.topic: message.headers["ce_type"] for message in relayed(engine)}
    assert told == {"a": "order.paid", "b": "shop.order", "c": "order.sent", "d": "d"}


def swear(_: Any) -> tuple[bytes, str]:
    return b'{"a": NaN}', "application/json"


DATA: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "JSON": ({"ä": [1, None]}, {"datacontenttype": "application/json", "data": {"ä": [1, None]}}, None),
    "text": ('"ä"', {"datacontenttype": "text/plain; charset=utf-8", "data": '"ä"'}, None),
    "bytes": (b"\xff", {"datacontenttype": "application/octet-stream", "data_base64": "/w=="}, None),
    "no JSON": (1, {"datacontenttype": "application/json", "data_base64": "eyJhIjogTmFOfQ=="}, swear),
}


@pytest.mark.parametrize(("payload", "expected", "serializer"), DATA.values(), ids=DATA)
def test_structured_mode(engine: Engine, payload: Any, expected: dict[str, Any], serializer: Any) -> None:
    """In structured mode the payload is an event that contains the attributes, including those in the
    message's headers; other headers stay headers."""
    outbox = Outbox(cloudevents="/shop", event_mode="structured", serializer=serializer)
    with engine.begin() as connection:
        given = {"ce_dataschema": "/schema", "colour": "blue"}
        message_id = outbox.publish(connection, TOPIC, payload, "k", given)
    (message,) = relayed(engine)
    assert message.content_type == "application/cloudevents+json; charset=utf-8"
    assert message.headers == {"colour": "blue"}
    event = json.loads(message.payload)
    assert datetime.fromisoformat(event.pop("time")).tzinfo is not None
    assert event == {
        "specversion": "1.0",
        "id": message_id,
        "source": "/shop",
        "type": TOPIC,
        "subject": "k",
        "partitionkey": "k",
        "dataschema": "/schema",
        **expected,
    }


def test_a_tombstone_in_structured_mode(engine: Engine) -> None:
    """A tombstone has no payload in structured mode either; its attributes are headers."""
    with engine.begin() as connection:
        Outbox(cloudevents="/shop", event_mode="structured").publish(connection, TOPIC, None, "k")
    (message,) = relayed(engine)
    assert (message.payload, message.content_type) == (None, "")
    assert message.headers["ce_source"] == "/shop"


def test_the_limit_counts_the_whole_event(engine: Engine) -> None:
    """In structured mode the attributes around the payload count towards `largest_payload`."""
    outbox = Outbox(cloudevents="/shop", event_mode="structured", largest_payload=200)
    with engine.begin() as connection, pytest.raises(InvalidMessage, match="largest_payload=200"):
        outbox.publish(connection, TOPIC, "x" * 150)


def test_sources_of_events() -> None:
    """A source can be a URI or a URI reference."""
    uris = ["https://shop.example:80/a?b=c#d", "urn:uuid:1-2", "mailto:a@b", "//[::1]/a"]
    for source in (*uris, "/shop", "shop", "%C3%A4", "?a", "#"):
        with case(source):
            Outbox(cloudevents=source)


def test_every_cloud_event_has_its_own_id(engine: Engine, telling: Outbox) -> None:
    """Each message of `publish_many` has its own attributes."""
    with engine.begin() as connection:
        ids = telling.publish_many(connection, [Message(f"topic-{n}", "a") for n in range(3)])
    found = relayed(engine)
    assert sorted(message.headers["ce_id"] for message in found) == sorted(ids)
    assert {message.headers["ce_type"] for message in found} == {"topic-0", "topic-1", "topic-2"}


def test_without_opentelemetry() -> None:
    """Without OpenTelemetry installed, messages have no trace headers, and there is no error or warning."""
    code = """
import json
import sys
sys.modules["opentelemetry"] = None
import sqlalchemy
from inbox.schema import metadata
from outbox import Outbox, schema
engine = sqlalchemy.create_engine("sqlite://")
metadata.create_all(engine)
with engine.begin() as connection:
    Outbox().publish(connection, "orders", "a")
    print(connection.scalar(sqlalchemy.select(schema.tables().message.c.headers)))
engine.dispose()
"""
    done = run([sys.executable, "-W", "error", "-c", code])
    assert (done.stdout, done.stderr) == ("None\n", "")
