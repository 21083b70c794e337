"""Routers: which publisher gets a message, and messages that go to several publishers."""

import random
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from multiprocessing.connection import Connection as Pipe
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import (
    AsyncPublisher,
    AsyncRelay,
    AsyncRouter,
    Envelope,
    Outbox,
    Outcome,
    Publisher,
    Refused,
    Relay,
    Router,
    Unavailable,
    Unknown,
    drop,
    retry,
)
from outbox.errors import InvalidOption
from outbox.kafka import KafkaPublisher
from outbox.rabbitmq import RabbitPublisher
from tests.relay.test_async import in_loop
from tests.support.brokers.kafka_topics import Topics, envelope, id_of, values, wait_until
from tests.support.brokers.rabbit_queues import Queues
from tests.support.database import Database
from tests.support.outbox_publishers import (
    ACCEPTED,
    AsyncRecorder,
    Recorder,
    dead,
    let_backoffs_end,
    let_leases_end,
    name_of,
    publish,
    relay,
    waiting,
)
from tests.support.processes import workers
from tests.support.relay.worker import die

pytest_plugins = ["tests.support.brokers.kafka_fixtures", "tests.support.brokers.rabbit_fixtures"]

AWAY = Unavailable("away")


@pytest.fixture
def engine(postgres: Database) -> Engine:
    return postgres.engine()


def turn(engine: Engine, publisher: Any, **options: Any) -> None:
    """End all backoffs and relay once more."""
    let_backoffs_end(engine)
    relay(engine, publisher, **options)


@pytest.mark.parametrize(
    ("topic", "pattern"),
    [
        ("orders", "orders"),
        ("orders.paid", "orders.*"),
        ("orders.paid.late", "orders.*"),
        ("orders.", "orders.*"),
        ("orders.eu.paid", "orders.eu.*"),
        ("orders.x.paid", "*.paid"),
        ("a[b]", "a[b]"),
        ("ab", "*"),
        ("mail\nx", "*"),
        ("a*c", "a*c"),
        ("abc", "a*c"),
    ],
)
def test_which_pattern_counts(topic: str, pattern: str) -> None:
    """The exact name wins; otherwise the pattern with the most characters besides `*`. No other character is
    special."""
    names = ["*", "*.paid", "orders.*", "orders", "orders.eu.*", "a[b]", "a*c"]
    if topic == "orders.x.paid":
        names[2:3] = []
    publishers = {name: Recorder() for name in names}
    Router(publishers).send([envelope(topic, "1")])
    assert [name for name, each in publishers.items() if each.sent] == [pattern]


def test_of_two_as_long_the_first_counts() -> None:
    """Between patterns of the same length, the first route wins."""
    for names in (["ab*", "*bc"], ["*bc", "ab*"]):
        publishers = {name: Recorder() for name in names}
        Router(publishers).send([envelope("abc", "1")])
        assert [len(each.sent) for each in publishers.values()] == [1, 0]


def test_a_topic_without_a_route_waits(engine: Engine) -> None:
    """A message without a route stays in the outbox with the reason, and delays no other topic; a relay that
    has a route sends it."""
    first, second = Recorder(), Recorder()
    publish(engine, "a1", topic="mail")
    publish(engine, "b1", topic="order")
    assert relay(engine, Router({"mail": first, "orders.*": second})) == 1
    assert waiting(engine)["b1"].error == "no route for topic 'order'; there are 'mail', 'orders.*'"
    turn(engine, Router({"mail": first, "order*": second}))
    assert (first.names, second.names) == (["a1"], ["b1"])
    assert not waiting(engine)


class Declaring(Recorder):
    """A publisher with every optional part, which records the calls."""

    def __init__(self, timeout: float | None = 2, *, ordered: bool = True, concurrent: bool = True) -> None:
        super().__init__()
        self.timeout, self.ordered, self.concurrent = timeout, ordered, concurrent
        self.calls: list[Any] = []

    def check(self, lease: float) -> None:
        self.calls.append(lease)

    def begin_no_more(self) -> None:
        self.calls.append("begin no more")

    def close(self) -> None:
        self.calls.append("close")
        raise ZeroDivisionError


def test_what_its_publishers_declare() -> None:
    """A router is ordered, is concurrent, or has a time limit only if all its publishers do. The time limit
    covers the sends of one route, which run one after the other. Each publisher is checked, stopped and
    closed once, even if another one raises."""
    one, two, three = Declaring(2), Declaring(3), Declaring(4)
    router = Router({"a": [one, two], "b": three, "c": one})
    assert (router.ordered, router.concurrent, router.timeout) == (True, True, 5)
    router.check(30)
    router.begin_no_more()
    with pytest.raises(ZeroDivisionError):
        router.close()
    for each in (one, two, three):
        assert each.calls == [30, "begin no more", "close"]
    assert Router({"a": one, "b": Declaring(None)}).timeout is None
    assert not Router({"a": one, "b": Declaring(ordered=False)}).ordered
    assert not Router({"a": one, "b": Declaring(concurrent=False)}).concurrent
    plain = Router({"a": Recorder()})
    assert (plain.ordered, plain.concurrent, plain.timeout) == (False, True, None)
    plain.check(30)
    plain.begin_no_more()
    plain.close()
    assert repr(router) == "Router('a', 'b', 'c')"
    assert isinstance(router, Publisher)
    assert isinstance(AsyncRouter({"a": AsyncRecorder()}), AsyncPublisher)


def test_invalid_routes() -> None:
    """Creating a router with an invalid route raises an error that names the route."""
    one = Recorder()
    wrong: list[tuple[Any, str]] = [
        ({}, "routes={}: expected a mapping"),
        (one, "routes=<"),
        ({"a": []}, r"routes\['a'\]: expected at least one"),
        ({"a": "b"}, r"routes\['a'\]=str: expected an object with send"),
        ({"a": [one, one]}, r"routes\['a'\]: the same publisher twice"),
        ({"a": AsyncRecorder()}, r"routes\['a'\]=AsyncRecorder: Router needs a synchronous"),
    ]
    for routes, message in wrong:
        with pytest.raises(InvalidOption, match=message):
            Router(routes)
    with pytest.raises(InvalidOption, match=r"routes\['a'\]=Recorder: AsyncRouter needs an asynchronous"):
        AsyncRouter({"a": one})  # type: ignore[dict-item]


def test_one_of_two_is_away(engine: Engine) -> None:
    """A message that one publisher has accepted is sent again only to the other one, until that accepts it
    too. The row's error names both publishers."""
    first, second = Recorder(), Recorder({"a1": [AWAY, Unknown("no answer")]})
    router = Router({"orders": (first, second)})
    publish(engine, "a1", "b1")
    relay(engine, router)
    assert list(waiting(engine)) == ["a1"]
    assert waiting(engine)["a1"].state == "pending"
    assert waiting(engine)["a1"].error == (
        "publisher 1 (Recorder): accepted; publisher 2 (Recorder): unavailable: away"
    )
    turn(engine, router)
    assert waiting(engine)["a1"].state == "unknown"
    turn(engine, router)
    assert not waiting(engine)
    assert Counter(first.names) == {"a1": 1, "b1": 1}
    assert Counter(second.names) == {"a1": 3, "b1": 1}
    assert len({each.id for each in (*first.sent, *second.sent)}) == 2


def test_one_of_two_refuses(engine: Engine) -> None:
    """A refused message becomes a dead letter once its other delivery has ended as well. When an operator
    retries it, it goes only to the publisher that refused it."""
    first, second = Recorder({"a1": [Refused("no")]}), Recorder({"a1": [AWAY]})
    router = Router({"orders": [first, second]})
    [message] = publish(engine, "a1")
    relay(engine, router)
    assert not dead(engine)
    turn(engine, router)
    assert dead(engine)["a1"].error == (
        "publisher 1 (Recorder): refused: no; publisher 2 (Recorder): accepted"
    )
    retry(engine, message)
    turn(engine, router)
    assert not dead(engine)
    assert not waiting(engine)
    assert (len(first.sent), len(second.sent)) == (2, 2)


def test_an_id_that_is_used_again(engine: Engine) -> None:
    """When a message is dropped and another one uses its id, deliveries of the first do not count for the
    second."""
    first, second = Recorder(), Recorder({"a1": [AWAY]})
    router = Router({"orders": [first, second]})
    for _ in range(2):
        with engine.begin() as connection:
            Outbox().publish(connection, "orders", b"a1", key="a", id="mine")
        turn(engine, router)
        if waiting(engine):
            drop(engine, "mine")
    assert (len(first.sent), len(second.sent)) == (2, 2)


class Mumbling(Recorder):
    """A publisher that raises or gives invalid answers."""

    def __init__(self, answers: Iterable[Any]) -> None:
        super().__init__()
        self.answers = answers

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        yield from self.answers
        raise ZeroDivisionError("broken")


@pytest.mark.parametrize(
    ("answers", "known"),
    [
        ((), []),
        ((ACCEPTED,), [0]),
        (((1, ACCEPTED),), [1]),
        (((7, ACCEPTED),), []),
        (("yes",), []),
        (repeat(ACCEPTED), []),
    ],
    ids=str,
)
def test_a_publisher_that_raises(answers: Iterable[Any], known: list[int]) -> None:
    """Messages that a publisher has not answered are unknown; the other publisher has been sent all of
    them. One that answers without end is not heard out."""
    good = Recorder()
    batch = [envelope("a", "1"), envelope("a", "2")]
    outcomes = list(Router({"a": [Mumbling(answers), good]}).send(batch))
    assert [place for place, each in enumerate(outcomes) if each == ACCEPTED] == known
    assert {type(each) for each in outcomes if each != ACCEPTED} <= {Unknown}
    assert len(good.sent) == 2


class Greedy(Recorder):
    """A publisher that takes the messages out of its batch, and marks their headers."""

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        own: Any = batch
        outcomes = list[Outcome]()
        while own:
            message = own.pop(0)
            message.headers["sent"] = "yes"
            outcomes += super().send([message])
        return outcomes


class AsyncGreedy(Greedy):
    async def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:  # type: ignore[override]
        return super().send(batch)


def test_publishers_that_change_their_batch(postgres: Database) -> None:
    """Each publisher has a list of its own, in both routers: what one of them does to it and to the headers
    changes neither the others' messages nor its own answers."""
    engine = postgres.engine()
    first, second = Greedy(), Recorder()
    publish(engine, "a1", "b1", headers={"h": "1"})
    assert relay(engine, Router({"*": [first, Greedy(), second]})) == 2
    assert (first.names, second.names) == (["a1", "b1"], ["a1", "b1"])
    assert [each.headers for each in second.sent] == [{"h": "1"}] * 2

    async def scenario(own: AsyncEngine) -> int:
        return await AsyncRelay(own, AsyncRouter({"*": [AsyncGreedy(), last]})).run_once()

    last = AsyncRecorder()
    publish(engine, "a1", "b1", headers={"h": "1"})
    assert in_loop(postgres, scenario) == 2
    assert [each.headers for each in last.sent] == [{"h": "1"}] * 2


class Careful(Recorder):
    """An ordered publisher that accepts messages at random, but none of a key behind one that it did not
    accept."""

    ordered = True

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        failed, outcomes = set[str | None](), list[Outcome]()
        for message in batch:
            is_taken = message.key not in failed and self._chance.random() < 0.7
            outcomes.append(ACCEPTED if is_taken else AWAY)
            if is_taken:
                self.accepted.append(message)
            else:
                failed.add(message.key)
        return outcomes


@pytest.mark.parametrize("forgets", [False, True])
def test_each_of_two_gets_the_order_of_a_key(engine: Engine, forgets: bool) -> None:
    """However the outcomes of two publishers differ, each publisher gets the messages of a key in order and
    once. After a crash of the router's process a publisher may get some again, but loses none."""
    chance = random.Random(7)
    names = [f"{key}{number}" for number in range(12) for key in "abc"]
    publishers = [Careful(chance), Careful(chance)]
    router = Router({"orders": publishers})
    publish(engine, *names)
    turns = 0
    while waiting(engine):
        turn(engine, router)
        turns += 1
        if forgets and turns % 3 == 0:
            router = Router({"orders": publishers})
    for each in publishers:
        first_times = list(dict.fromkeys(name_of(message) for message in each.accepted))
        for key in "abc":
            assert [name for name in first_times if name[0] == key] == [
                name for name in names if name[0] == key
            ]
        assert (len(each.accepted) == len(names)) is not forgets


def test_behind_a_refused_message_nothing_is_sent_early() -> None:
    """A message that one publisher refused still waits for the other publisher: meanwhile the first one gets
    no later message of its key."""
    first, second = Declaring(), Declaring()
    first.answer = lambda message: Refused("no") if message.payload == b"1" else ACCEPTED
    second.answer = lambda _: AWAY
    router = Router({"a": [first, second]})
    batch = [envelope("a", "1", "k"), envelope("a", "2", "k")]
    router.send(batch[:1])
    router.send(batch)
    assert [each.payload for each in first.sent] == [b"1"]


def test_asynchronous_publishers(postgres: Database) -> None:
    """An AsyncRouter does the same for an AsyncRelay: it routes by topic, sends to several publishers, and
    retries each one separately."""
    engine = postgres.engine()
    first, second, third = (
        AsyncRecorder(),
        AsyncRecorder({"a1": [AWAY]}),
        AsyncRecorder({"b1": [Refused("no")]}),
    )
    router = AsyncRouter({"orders": [first, second], "mail.*": third})
    publish(engine, "a1")
    publish(engine, "b1", topic="mail.out")
    publish(engine, "c1", topic="nowhere")

    async def scenario(own: AsyncEngine) -> None:
        await router.check(30)
        for _ in range(2):
            let_backoffs_end(engine)
            await AsyncRelay(own, router).run_once()
        await router.close()

    in_loop(postgres, scenario)
    assert (first.names, second.names, third.names) == (["a1"], ["a1", "a1"], ["b1"])
    assert list(dead(engine)) == ["b1"]
    assert list(waiting(engine)) == ["c1"]


class Deadly(Recorder):
    """A publisher whose process is killed when it should send."""

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        die()
        return []


def dying_router(pipe: Pipe, url: URL, address: str, topic: str) -> None:
    """Relay to RabbitMQ, and be killed before the same messages go to another broker."""
    router = Router({topic: [RabbitPublisher(address), Deadly()]})
    Relay(create_engine(url), router).run_once()


@pytest.mark.long
def test_two_brokers(postgres: Database, queues: Queues, topics: Topics) -> None:
    """A message goes to RabbitMQ and Kafka. While Kafka's topic is missing, the message waits, and RabbitMQ
    has it once. After a kill -9 between the two sends it goes to both again, so RabbitMQ has it twice, with
    one id."""
    engine, name = postgres.engine(), queues.new()
    publish(engine, "a1", topic=name)
    kafka = {"bootstrap.servers": topics.address, "topic.metadata.propagation.max.ms": 500}
    router = Router({name: [RabbitPublisher(queues.url), KafkaPublisher(kafka)]})
    turn(engine, router)
    assert queues.count(name) == 1
    assert "publisher 1 (RabbitPublisher): accepted" in waiting(engine)["a1"].error
    topics.make(name)

    def is_sent() -> bool:
        turn(engine, router)
        return not waiting(engine)

    wait_until(is_sent)
    publish(engine, "b1", topic=name)
    with workers((dying_router, postgres.url, queues.url, name)) as (killed,):
        assert killed.exit_code() == -signal.SIGKILL
    let_leases_end(engine)
    turn(engine, router)
    router.close()
    assert not waiting(engine)
    records = topics.log(name)
    assert values(records) == ["a1", "b1"]
    ids = [id_of(record) for record in records]
    assert [message.header.properties.message_id for message in queues.take(name)] == [ids[0], ids[1], ids[1]]
