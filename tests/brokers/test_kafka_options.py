"""Invalid arguments of a KafkaConsumer are rejected when it is created."""

from typing import Any

import pytest

from inbox import AsyncInbox, Delivery, Inbox, Outcome, Verdict, message_id
from inbox.errors import InvalidOption
from inbox.kafka import AsyncKafkaConsumer, KafkaConsumer


@pytest.mark.parametrize(
    ("config", "options", "named"),
    [
        ({"group.id": ""}, {}, "group.id"),
        ({"enable.auto.commit": True}, {}, "enable.auto.commit=True"),
        ({"enable.auto.commit": "true"}, {}, "enable.auto.commit='true'"),
        ({"max.poll.interval.ms": 20_000}, {}, "grace=30"),
        ({"max.poll.interval.ms": "abc"}, {}, "max.poll.interval.ms='abc'"),
        ({}, {"batch": 0}, "batch=0"),
        ({}, {"partitions": 0}, "partitions=0"),
        ({}, {"max_attempts": 0}, "max_attempts=0"),
        ({}, {"dead_letter": 7}, "dead_letter=7"),
        ({}, {"concurrency": 2}, "concurrency=2"),
    ],
    ids=str,
)
def test_invalid_options(config: dict[str, Any], options: dict[str, Any], named: str) -> None:
    """An invalid option is rejected by name and value."""
    whole = {"bootstrap.servers": "127.0.0.1:1", "group.id": "a", **config}
    with pytest.raises(InvalidOption, match=named):
        KafkaConsumer(whole, "topic", lambda _: Outcome(Verdict.NEW), **options)


@pytest.mark.parametrize(
    "topics", ["orders.dead", ["orders", "orders.dead"], r"^orders\..*", "^[[:alpha:].]+$"]
)
def test_its_own_dead_letters(topics: Any) -> None:
    """A consumer that would take its own dead letters is rejected: they would come again without end."""
    config = {"bootstrap.servers": "127.0.0.1:1", "group.id": "a"}
    with pytest.raises(InvalidOption, match=r"^dead_letter='orders\.dead': the consumer would take its own"):
        KafkaConsumer(config, topics, lambda _: Outcome(Verdict.NEW), dead_letter="orders.dead")
    if isinstance(topics, str) and topics.startswith("^"):
        config["topic.blacklist"] = r"^a$,\.dead$"
        KafkaConsumer(config, topics, lambda _: Outcome(Verdict.NEW), dead_letter="orders.dead")


@pytest.mark.parametrize("topics", ["", [], [""], [7], ["a", None]], ids=repr)
def test_invalid_topics(topics: Any) -> None:
    """A consumer without a topic is rejected."""
    with pytest.raises(InvalidOption, match=r"^topics="):
        KafkaConsumer({"group.id": "a"}, topics, lambda _: Outcome(Verdict.NEW))


@pytest.mark.parametrize("name", ["order", "attempt", "retries"])
def test_an_argument_that_it_does_not_have(name: str) -> None:
    """An unknown argument is rejected by name, even if a listener has it."""
    options: dict[str, Any] = {name: "each"}
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{name}'"):
        KafkaConsumer({"group.id": "a"}, "topic", lambda _: Outcome(Verdict.NEW), **options)


def test_an_invalid_handler() -> None:
    """A handler that is not a function is rejected: otherwise each message would fail, and become a dead
    letter in the end."""
    with pytest.raises(InvalidOption, match="handler='bill'"):
        KafkaConsumer({"group.id": "a"}, "topic", "bill")  # type: ignore[arg-type]


def test_a_handler_for_the_other_consumer() -> None:
    """A handler of the wrong kind (synchronous, asynchronous) is rejected: otherwise its messages would never
    run, or would block the loop. A plain function may return an awaitable."""

    @AsyncInbox("payments").handler(lambda: None, key=message_id)  # type: ignore[arg-type, return-value]
    async def handle(connection: Any, delivery: Delivery) -> None: ...

    booked: Any = Inbox("payments").handler(lambda: None, key=message_id)  # type: ignore[arg-type, return-value]
    synchronous = booked(print)
    config = {"bootstrap.servers": "127.0.0.1:1", "group.id": "a"}
    with pytest.raises(InvalidOption, match="expected a synchronous function; see AsyncKafkaConsumer"):
        KafkaConsumer({"group.id": "a"}, "topic", handle)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="expected an asynchronous function"):
        AsyncKafkaConsumer(config, "topic", synchronous)
    AsyncKafkaConsumer(config, "topic", lambda delivery: handle(delivery))
