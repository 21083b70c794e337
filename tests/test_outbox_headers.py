"""Headers, trace context and CloudEvents names: what a message says about where it comes from."""

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
from tests.database import Database
from tests.program import run
from tests.published import TOPIC, WAYS, Way, relayed

TRACER = TracerProvider().get_tracer("test")


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """A database with an outbox."""
    return postgres.engine()


@pytest.fixture
def telling() -> Outbox:
    """An outbox whose messages carry CloudEvents' attributes."""
    return Outbox(cloudevents="/shop")


def sent(engine: Engine, outbox: Outbox, **given: Any) -> Envelope:
    """One message on its way through the database."""
    with engine.begin() as connection:
        outbox.publish(connection, TOPIC, "a", **given)
    (found,) = relayed(engine)
    return found


def test_headers_come_through(migrated: Database) -> None:
    """Names and values are text of any kind, and come back as they were, in any number."""
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
    """What leaves is what the headers were when it was published, also on a Session."""
    headers = {"a": "1"}
    with Session(engine) as session:
        Outbox().publish(session, TOPIC, "a", headers=headers)
        headers["a"] = "2"
        session.commit()
    assert [message.headers for message in relayed(engine)] == [{"a": "1"}]
    assert headers == {"a": "2"}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_span_at_publish_is_the_one_that_is_told(engine: Engine, way: Way) -> None:
    """`traceparent` names the span that was current when the message was published, not that of the commit;
    messages of `publish_many` carry it, too."""
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
    """The header of the W3C's recommendation."""
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def test_the_trace_state_is_told(engine: Engine) -> None:
    """`tracestate` and the flag of sampling go on, too."""
    parent = SpanContext(
        7, 8, is_remote=True, trace_flags=TraceFlags(0), trace_state=TraceState([("a", "b")])
    )
    with trace.use_span(NonRecordingSpan(parent)):
        message = sent(engine, Outbox())
    assert message.headers == {"traceparent": f"00-{7:032x}-{8:016x}-00", "tracestate": "a=b"}


def test_without_a_span_there_is_none(engine: Engine) -> None:
    """A message that is published outside any span, or by an outbox that was told so, carries no trace."""
    assert sent(engine, Outbox()).headers == {}
    with TRACER.start_as_current_span("publishes"):
        assert sent(engine, Outbox(trace=False)).headers == {}


def test_a_header_of_one_s_own_comes_first(engine: Engine, telling: Outbox) -> None:
    """A `traceparent` or a CloudEvents attribute that the message brings is the one that is sent."""
    given = {"traceparent": "mine", "ce_type": "order.placed", "ce_dataschema": "/schema"}
    with TRACER.start_as_current_span("publishes"):
        headers = sent(engine, telling, headers=given).headers
    assert given.items() <= headers.items()


def test_baggage_is_told(engine: Engine) -> None:
    """What OpenTelemetry's propagators of this process say goes along: by default baggage as well."""
    token = context.attach(baggage.set_baggage("tenant", "ä"))
    try:
        message = sent(engine, Outbox())
    finally:
        context.detach(token)
    assert message.headers == {"baggage": "tenant=%C3%A4"}


@pytest.mark.parametrize("key", ["order-42", None])
def test_cloud_events(engine: Engine, telling: Outbox, key: str | None) -> None:
    """The attributes of CloudEvents 1.0: id, source, type and time, and the key as subject."""
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
        **({"ce_subject": key} if key else {}),
    }


def test_every_cloud_event_has_its_own_id(engine: Engine, telling: Outbox) -> None:
    """Each message of `publish_many` has its own attributes."""
    with engine.begin() as connection:
        ids = telling.publish_many(connection, [Message(f"topic-{n}", "a") for n in range(3)])
    found = relayed(engine)
    assert [message.headers["ce_id"] for message in found] == ids
    assert [message.headers["ce_type"] for message in found] == ["topic-0", "topic-1", "topic-2"]


def test_without_opentelemetry() -> None:
    """Where OpenTelemetry is not installed, messages carry no trace, and nothing complains."""
    code = """
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
"""
    done = run([sys.executable, "-W", "error", "-c", code])
    assert (done.stdout, done.stderr) == ("None\n", "")
