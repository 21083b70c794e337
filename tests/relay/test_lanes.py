"""Each topic has its own lane: a topic that is slow, or that the broker rejects, delays no other."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event, Lock, Thread
from typing import Any, cast

import pytest
from sqlalchemy import Connection, Engine, insert

from inbox import Backoff
from inbox_outbox_base.databases import registry
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.relaying import Scan, ScanResult
from inbox_outbox_base.words.outgoing import Failed
from outbox import (
    Envelope,
    Message,
    Outbox,
    Outcome,
    Refused,
    Relay,
    Unavailable,
    Unknown,
    pause,
    resume,
    retry_all,
)
from outbox._relaying.reading import backlog
from outbox._relaying.reading import payloads as loading
from outbox._relaying.reading.backlog import Backlog
from outbox._relaying.reading.payloads import Loader
from outbox._relaying.rounds import Rounds
from outbox._relaying.sending import lanes
from outbox._relaying.sending.batch import Choice
from outbox._relaying.sending.flight import Flight
from outbox._relaying.sending.lanes import MOST_FLIGHTS, TopicLane, TopicLanes
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Ordered,
    Recorder,
    count,
    messages,
    name_of,
    publish,
    waiting,
)
from tests.support.processes import wait_until
from tests.support.relay.crashes import running
from tests.support.together import Task

MOST_NEW = MOST_FLIGHTS // 2
"""The most batches of new topics, and of those that hang, that are sent at the same time."""


class Gate(Recorder):
    """A publisher whose sends to some topics do not return until the gate is opened."""

    def __init__(self, *topics: str) -> None:
        super().__init__()
        self.topics = topics
        self.opened = Event()
        self._lock = Lock()
        self.running: Counter[str] = Counter()
        self.keys: set[str] = set()
        """The keys of messages whose send has not returned."""
        self.most = 0
        """The largest number of sends at the same time."""

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        (topic,) = {message.topic for message in batch}
        keys = {message.key for message in batch if message.key is not None}
        with self._lock:
            self.running[topic] += 1
            assert self.keys.isdisjoint(keys)
            self.keys |= keys
            self.most = max(self.most, self.running.total())
        if topic in self.topics:
            assert self.opened.wait(60)
        with self._lock:
            self.running[topic] -= 1
            self.keys -= keys
        return super().send(batch)


@contextmanager
def relaying(engine: Engine, publisher: Any, **options: Any) -> Iterator[Relay]:
    """A running relay."""
    relay = Relay(engine, publisher, **{"poll": 0.05, **options})
    with running(relay):
        try:
            yield relay
        finally:
            relay.stop()
            if isinstance(publisher, Gate):
                publisher.opened.set()


@on("sqlite", "postgresql")
def test_a_slow_topic_delays_no_other(engine: Engine) -> None:
    """While a send to one topic has not returned, older and newer messages of other topics are sent."""
    publish(engine, *(f"-{number}" for number in range(300)), topic="slow")
    publish(engine, "a1", "-1", topic="quick")
    publisher = Gate("slow")
    with relaying(engine, publisher):
        wait_until(lambda: len(publisher.accepted) == 2)
        publish(engine, "a2", "b1", topic="quick")
        publish(engine, "c1", topic="another")
        wait_until(lambda: len(publisher.accepted) == 5)
        assert publisher.of("a") == ["a1", "a2"]
        wait_until(lambda: len(waiting(engine)) == 300)
        publisher.opened.set()
        wait_until(lambda: not waiting(engine))
    assert Counter(message.topic for message in publisher.sent) == {"slow": 300, "quick": 4, "another": 1}


def test_what_a_relay_remembers_is_bounded(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay reads no further while it knows too many messages that it cannot send, and in the end sends all
    of them."""
    monkeypatch.setattr(Backlog, "most", 50)
    engine = postgres.engine()
    publish(engine, *(f"-{number}" for number in range(1_000)), topic="slow")
    publish(engine, *(f"-{number}" for number in range(1_000)), topic="quick")
    publisher = Gate("slow")
    publisher.opened.set()
    relay = Relay(engine, publisher)
    assert relay.run_once() == 2_000


@on("sqlite")
def test_bytes_that_are_sent_at_the_same_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch waits while the batches of other topics that are being sent would exceed the limit of bytes
    together with it."""
    monkeypatch.setattr(loading, "_MOST_BYTES", 250)
    topics = ["one", "two", "three"]
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message(topic, b"x" * 100) for topic in topics])
        Outbox().publish(connection, "large", b"x" * 1_000)
    publisher = Gate(*topics, "large")
    with relaying(engine, publisher):
        wait_until(lambda: publisher.running.total() > 0)
        publisher.opened.set()
        wait_until(lambda: not waiting(engine))
    assert publisher.most <= 2
    assert len(publisher.sent) == 4


@on("sqlite", "postgresql")
def test_a_key_keeps_its_order_across_topics(engine: Engine) -> None:
    """A message waits for the previous one of its key, whose send to another topic has not returned."""
    publish(engine, "a1", topic="slow")
    publish(engine, "a2", "b1", topic="quick")
    publisher = Gate("slow")
    with relaying(engine, publisher):
        wait_until(lambda: publisher.names == ["b1"])
        publish(engine, "b2", topic="quick")
        wait_until(lambda: publisher.names == ["b1", "b2"])
        publisher.opened.set()
        wait_until(lambda: not waiting(engine))
    assert publisher.of("a") == ["a1", "a2"]


def test_a_bounded_number_of_topics_at_a_time(postgres: Database) -> None:
    """If there are more new topics than can be sent at the same time, each one has its turn."""
    engine = postgres.engine()
    topics = [f"t{number}" for number in range(MOST_NEW + 8)]
    for topic in topics:
        publish(engine, "-1", topic=topic)
    publisher = Gate(*topics)
    with relaying(engine, publisher):
        wait_until(lambda: publisher.running.total() == MOST_NEW)
        publisher.opened.set()
        wait_until(lambda: not waiting(engine))
    assert publisher.most == MOST_NEW
    assert sorted(message.topic for message in publisher.sent) == sorted(topics)


@on("sqlite", "postgresql")
@pytest.mark.parametrize("were_quick", [False, True])
def test_topics_that_hang_leave_room(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, were_quick: bool
) -> None:
    """While more topics hang than may be sent at the same time, a topic whose last send was quick is sent,
    also if those that hang were quick once. The log names topics that hang."""
    monkeypatch.setattr(lanes, "_LONG", 0.5)
    topics = [f"t{number}" for number in range(MOST_NEW + 8)]
    publisher = Gate(*topics)
    publish(engine, "a1", topic="healthy")
    if were_quick:
        publisher.opened.set()
        publish_to(engine, topics)
    with relaying(engine, publisher):
        wait_until(lambda: not waiting(engine))
        publisher.opened.clear()
        publish_to(engine, topics)
        wait_until(lambda: publisher.running.total() >= MOST_NEW)
        for number in range(2, 5):
            publish(engine, f"a{number}", topic="healthy")
            wait_until(lambda: len(publisher.of("a")) == number)  # noqa: B023
        assert publisher.running.total() <= MOST_FLIGHTS
        wait_until(lambda: "sends have not returned" in caplog.text)
        assert "the publisher failed" not in caplog.text  # it would, before the gate is opened
        publisher.opened.set()
        wait_until(lambda: not waiting(engine))


def publish_to(engine: Engine, topics: Sequence[str], size: int = 1_000) -> None:
    """Publish a message of so many bytes to each of these topics."""
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message(topic, b"x" * size) for topic in topics])


@on("sqlite")
@pytest.mark.parametrize("were_quick", [False, True])
def test_topics_that_hang_leave_bytes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, were_quick: bool
) -> None:
    """While large messages of topics that hang are being sent, a topic whose last send was quick is sent,
    also if those that hang were quick once. The log names topics that hang."""
    monkeypatch.setattr(loading, "_MOST_BYTES", 4_000)
    monkeypatch.setattr(lanes, "_LONG", 0.5)
    topics = [f"t{number}" for number in range(8)]
    publisher = Gate(*topics)
    publish(engine, "a1", topic="healthy")
    if were_quick:
        publisher.opened.set()
        publish_to(engine, topics, size=1)
    with relaying(engine, publisher):
        wait_until(lambda: not waiting(engine))
        publisher.opened.clear()
        before = len(publisher.accepted)
        publish_to(engine, topics)
        wait_until(lambda: publisher.running.total() > (4 if were_quick else 1))
        publish_to(engine, ["healthy"])
        wait_until(lambda: len(publisher.accepted) == before + 1)
        wait_until(lambda: "sends have not returned" in caplog.text)
        publisher.opened.set()
        wait_until(lambda: not waiting(engine))


@on("sqlite")
@pytest.mark.parametrize("is_new", [False, True])
def test_a_large_message_has_its_turn(engine: Engine, monkeypatch: pytest.MonkeyPatch, is_new: bool) -> None:
    """A message that is larger than what is left beside batches that hang, or than the half of new topics, is
    sent."""
    monkeypatch.setattr(loading, "_MOST_BYTES", 4_000)
    topics = ["t0"] if is_new else ["t0", "t1"]
    publisher = Gate(*topics)
    publish(engine, "a1", topic="t0" if is_new else "large")
    publisher.opened.set()
    with relaying(engine, publisher):
        wait_until(lambda: not waiting(engine))
        publisher.opened.clear()
        publish_to(engine, topics)
        wait_until(lambda: publisher.running.total() == len(topics))
        publish_to(engine, ["large"], size=3_000)
        wait_until(lambda: len(publisher.accepted) == 2, timeout=30)
        publisher.opened.set()
        wait_until(lambda: not waiting(engine))


class Counting(Collection[str]):
    """Topics; it counts how often a lane is looked up."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = dict.fromkeys(topics)
        self.looks = 0

    def __contains__(self, topic: object) -> bool:
        self.looks += 1
        return topic in self.topics

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a round must not look at every topic")

    def __len__(self) -> int:
        raise AssertionError("a round must not count all topics")


@pytest.mark.parametrize("are_rejected", [False, True])
def test_many_topics_cost_no_more_each(are_rejected: bool) -> None:
    """How many topics a round looks at does not depend on the number of topics with messages: each is looked
    at a few times for each of its batches."""
    names = [f"t{number}" for number in range(5_000)]
    its_lanes, topics = TopicLanes(100, MOST_FLIGHTS), Counting(names)
    sent = list[str]()
    for name in names:
        its_lanes.want(name)
    while opened := its_lanes.open(topics):
        send_to(its_lanes, opened, Unavailable("away", retry_after=60) if are_rejected else ACCEPTED)
        sent += [lane.topic for lane in opened]
        if not are_rejected:
            for lane in opened:
                del topics.topics[lane.topic]
        its_lanes.seconds(topics)
    assert sent == names
    assert topics.looks <= 10 * len(names)


def test_very_many_topics_that_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of topics that the broker rejects, a few are tried at a time, and not again at once; when a topic is
    taken again, all are."""
    clock = Clock(monkeypatch)
    names, its_lanes = [f"t{number}" for number in range(20)], TopicLanes(100, MOST_FLIGHTS)
    for answer in (ACCEPTED, Unavailable("away", retry_after=60)):
        for name in names:
            its_lanes.want(name)
        send_to(its_lanes, its_lanes.open(names), answer)
    assert its_lanes.seconds(names) == 60
    clock.now += 60
    tried = its_lanes.open(names)
    assert 0 < len(tried) < 10
    send_to(its_lanes, tried, Unavailable("away", retry_after=60))
    assert not its_lanes.open(names)
    assert 0 < its_lanes.seconds(names) < 1
    clock.now += 1
    send_to(its_lanes, its_lanes.open(names)[:1], ACCEPTED)
    assert {lane.topic for lane in its_lanes.open(names)} == {*names}


def test_room_of_batches_that_begin_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """If as many batches as possible of topics that were quick begin to hang, the next such topic has its
    turn after some seconds, and the relay wakes up then."""
    clock = Clock(monkeypatch)
    names, its_lanes = [f"t{number}" for number in range(MOST_FLIGHTS)], TopicLanes(100, MOST_FLIGHTS)
    for name in names:
        send_to(its_lanes, [its_lanes.of(name)], ACCEPTED)
        its_lanes.want(name)
    for lane in its_lanes.open(names):
        its_lanes.launch(flight_to(lane.topic))
    assert 0 < len(its_lanes.flights) < MOST_FLIGHTS
    assert not its_lanes.open(names)
    assert 0 < its_lanes.seconds(names) < 10
    clock.now += its_lanes.seconds(names) + 0.1
    assert its_lanes.open(names)


@pytest.mark.parametrize("payload", [b"x" * 1_000, b""], ids=["bytes", "messages"])
def test_whatever_hangs_leaves_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, payload: bytes
) -> None:
    """As long as another batch may begin, a topic whose sends are quick gets room, and so does one that the
    broker rejects. All bytes and messages together keep a bound. The log names topics that hang."""
    monkeypatch.setattr(loading, "_MOST_BYTES", 100_000)
    clock, its_lanes = Clock(monkeypatch), TopicLanes(1_000, MOST_FLIGHTS)
    names = [f"t{number}" for number in range(MOST_FLIGHTS - 1)]
    for name in ("quick", "rejected", *names):
        send_to(its_lanes, [its_lanes.of(name)], ACCEPTED)
    send_to(its_lanes, [its_lanes.of("rejected")], Unavailable("away"))
    for name in names:
        its_lanes.launch(flight_of(loaded(its_lanes, [letter_of(name, payload)] * 1_000)[0]))
        clock.now += 10
        for topic in ("quick", "rejected"):
            assert loaded(its_lanes, [letter_of(topic, b"x" * 1_000)])
    assert sum(flight.size for flight in its_lanes.flights) <= 2 * 100_000
    assert sum(len(flight.letters) for flight in its_lanes.flights) <= 2 * 10_000
    assert "sends have not returned" in caplog.text


def test_a_large_message_holds_up_no_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a large message waits for another one, small messages of other topics are sent, and only as many
    bytes as leave it its turn."""
    monkeypatch.setattr(loading, "_MOST_BYTES", 64_000)
    clock, its_lanes = Clock(monkeypatch), TopicLanes(1_000, MOST_FLIGHTS)
    names = ["large", "larger", "largest", "small"]
    for name in names:
        send_to(its_lanes, [its_lanes.of(name)], ACCEPTED)
    large, larger, largest = [[letter_of(name, b"x" * 40_000)] for name in names[:3]]
    for letters in (large, larger):
        its_lanes.launch(flight_of(letters))
    few = [letter_of("small", b"x" * 400)] * 2
    assert loaded(its_lanes, largest, few * 50) == [few]
    clock.now += 10
    assert loaded(its_lanes, largest, few * 50) == [largest, few]


def loaded(its_lanes: TopicLanes, *batches: list[Letter]) -> list[list[Letter]]:
    """What may be sent now of these batches."""
    choice, nowhere = Choice([*batches]), cast("Connection", None)
    Loader(registry.relaying("sqlite", TABLES), its_lanes, 16).load(nowhere, choice)
    return choice.batches


class Clock:
    """The clock that lanes and sends read; it stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def send_to(its_lanes: TopicLanes, opened: Iterable[TopicLane], answer: Outcome) -> None:
    """Send a message to each of these topics, all at the same time."""
    flights = [flight_to(lane.topic) for lane in opened]
    for flight in flights:
        its_lanes.launch(flight)
    for flight in flights:
        flight.fly(lambda _: [answer], lambda: True)
        its_lanes.land(flight)


def flight_to(topic: str) -> Flight:
    """A batch of one message."""
    return flight_of([letter_of(topic)])


def flight_of(letters: list[Letter]) -> Flight:
    """A batch of these messages."""
    return Flight(letters, ordered=False, give_up_after=None, arrived=lambda: None)


def letter_of(topic: str, payload: bytes = b"") -> Letter:
    """A message of a topic."""
    now, size = datetime.now(UTC), len(payload)
    return Letter("id", 1, topic, None, "", None, now, payload, size, 1, 0, 0, "pending", None, None, None)


@on("sqlite")
def test_one_send_at_a_time(engine: Engine) -> None:
    """A publisher that is not concurrent gets one batch after the other, each of one topic; every topic has
    its turn."""
    for number in range(3):
        for topic in ("one", "two", "three"):
            publish(engine, f"{topic[0]}{number}", f"-{number}", topic=topic)
    publisher = Gate()
    publisher.concurrent = False  # type: ignore[attr-defined]
    assert Relay(engine, publisher, batch=2).run_once() == 18
    assert publisher.most == 1
    assert {message.topic for message in publisher.sent[:6]} == {"one", "two", "three"}


@on("sqlite", "postgresql")
def test_outcomes_are_written_when_they_arrive(engine: Engine) -> None:
    """If a publisher reports outcomes one by one, in any order, each is in the database while the others are
    still being sent."""
    publish(engine, "a1", "b1", "c1")
    may_go_on = Event()

    class Telling(Recorder):
        def send(self, batch: Sequence[Envelope]) -> Any:
            self.batches.append([*batch])
            yield 2, ACCEPTED
            yield 0, Unavailable("later", retry_after=600)
            assert may_go_on.wait(60)
            yield 1, ACCEPTED

    publisher = Telling()
    with relaying(engine, publisher):
        wait_until(
            lambda: {name: row.attempts for name, row in waiting(engine).items()} == {"a1": 1, "b1": 0}
        )
        may_go_on.set()
        wait_until(lambda: list(waiting(engine)) == ["a1"])
    assert publisher.names == ["a1", "b1", "c1"]


@pytest.mark.parametrize("outcome", [Unavailable("full"), Unknown("silence")], ids=str)
@on("postgresql")
def test_a_topic_that_is_not_taken_is_tried_with_one_message(engine: Engine, outcome: Outcome) -> None:
    """After the first failed batch of a topic, the relay sends single messages of it, less and less often,
    while other topics go on; once one is accepted, all are sent."""
    publish(engine, *(f"-{number}" for number in range(40)), topic="away")
    publisher = Recorder(lambda message: outcome if message.topic == "away" else ACCEPTED)

    def tried() -> list[int]:
        return [len(batch) for batch in publisher.batches if batch[0].topic == "away"]

    with relaying(engine, publisher):
        for number in range(4):
            publish(engine, f"a{number}", topic="quick")
            wait_until(lambda: len(tried()) > number and len(publisher.of("a")) > number)  # noqa: B023
        assert set(tried()[1:]) == {1}
        publisher.answer = lambda _: ACCEPTED
        wait_until(lambda: len(publisher.accepted) > 4 + 1, timeout=60)


@pytest.mark.parametrize("is_paused", [False, True])
@on("postgresql")
def test_an_operator_does_not_wait_for_a_topic(engine: Engine, is_paused: bool) -> None:
    """A topic that is due to be retried in two minutes is tried soon after an operator retries its message or
    ends its pause."""
    publish(engine, "a1")
    publisher = Recorder(lambda _: Unavailable("away", retry_after=3_600))
    with relaying(engine, publisher) as relay:
        wait_until(lambda: waiting(engine)["a1"].attempts == 1)
        if is_paused:
            pause(engine, "orders")
            wait_until(lambda: bool(relay._rounds._scanner.paused))
        publisher.answer = lambda _: ACCEPTED
        assert retry_all(engine, "waiting") == 1
        resume(engine, "orders")
        wait_until(lambda: len(publisher.accepted) == 1)


@pytest.mark.parametrize("batch", [1, 2])
@on("postgresql")
def test_new_messages_are_sent_beside_many_that_fail(engine: Engine, batch: int) -> None:
    """However small the batches are, messages that are retried do not fill all of them."""
    bad = [f"bad{number}" for number in range(60)]
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message("orders", b"-", key) for key in bad])
    publisher = Recorder(lambda message: Failed("x") if message.key in bad else ACCEPTED)
    often = {"max_attempts": 1_000_000, "backoff": Backoff(first=0.01, longest=0.02)}
    with running(Relay(engine, publisher, batch=batch, **often)):  # type: ignore[arg-type]
        wait_until(lambda: len(publisher.sent) > 2 * len(bad))
        publish(engine, "a1", "b1", "c1")
        wait_until(lambda: len(publisher.accepted) == 3)


class Slow(Recorder):
    """A publisher to a broker that takes a moment to answer."""

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        time.sleep(0.002)
        return super().send(batch)


@on("sqlite", "postgresql")
def test_a_hot_key_does_not_fill_its_bucket(engine: Engine) -> None:
    """Messages of other keys are sent soon, even behind a thousand messages of one key in the same bucket."""
    many = 1_000
    with engine.begin() as connection:
        rows = [{"key": "hot", "id": f"h{number}"} for number in range(many)]
        rows += [{"key": f"k{number}", "id": f"k{number}"} for number in range(20)]
        same = {"bucket": 7, "topic": "orders", "payload": b"-", "content_type": "x"}
        connection.execute(insert(TABLES.message), [row | same for row in rows])
    publisher = Slow()
    assert Relay(engine, publisher, batch=100).run_once() == many + 20
    places = [place for place, message in enumerate(publisher.sent) if message.key != "hot"]
    assert max(places) < many / 2
    assert [message.id for message in publisher.sent if message.key == "hot"] == [
        f"h{n}" for n in range(many)
    ]


@on("sqlite", "postgresql")
def test_many_messages_of_a_key_in_a_batch(engine: Engine) -> None:
    """A publisher that keeps the order itself gets as many messages of a key as a batch can hold."""
    publish(engine, *(f"a{number}" for number in range(250)))
    publisher = Ordered()
    assert Relay(engine, publisher, batch=100).run_once() == 250
    assert publisher.of("a") == [f"a{number}" for number in range(250)]
    assert [len(batch) for batch in publisher.batches] == [100, 100, 50]


FAILURES = [Unavailable("later", retry_after=0), Unknown("silence"), Refused("never")]


@on("sqlite")
@pytest.mark.parametrize("outcome", FAILURES, ids=lambda outcome: type(outcome).__name__)
@pytest.mark.parametrize("place", [0, 3, 9])
def test_behind_the_first_failure_of_a_key(engine: Engine, outcome: Outcome, place: int) -> None:
    """When message n of a key fails, the messages behind it in the batch count as not sent, whatever the
    publisher says about them, and are sent after n has been sent again or is dead. Other keys go on."""
    publish(engine, *(f"a{number}" for number in range(10)), "b1", "b2")
    publisher = Ordered({f"a{place}": [outcome]})
    relay = Relay(engine, publisher)
    behind = 9 - place
    first = relay.run_once()
    is_dead = isinstance(outcome, Refused)
    assert first == (11 if is_dead else 12 - 1 - behind if isinstance(outcome, Unknown) else 12)
    later = [name_of(message) for message in publisher.sent[12:]]
    expected = [f"a{number}" for number in range(place + is_dead, 10)]
    if not isinstance(outcome, Unknown):
        assert later == expected
        assert count(engine, TABLES.message) == 0
    assert all(message.attempt == 1 for message in publisher.sent if name_of(message) != f"a{place}")


@on("sqlite")
def test_answers_of_a_key_in_the_wrong_order(engine: Engine) -> None:
    """If the answer for a later message of a key arrives first, it waits for the earlier message's answer,
    and does not count if that message failed."""
    publish(engine, "a1", "a2", "a3", "b1")

    class Backwards(Ordered):
        def send(self, batch: Sequence[Envelope]) -> Any:
            self.batches.append([*batch])
            answers = {"a1": ACCEPTED, "a2": Unavailable("later", 600), "a3": ACCEPTED, "b1": ACCEPTED}
            for place, message in reversed([*enumerate(batch)]):
                yield place, answers[name_of(message)]

    assert Relay(engine, Backwards()).run_once() == 2
    assert {name: row.attempts for name, row in waiting(engine).items()} == {"a2": 1, "a3": 0}


@on("sqlite", "postgresql")
def test_buckets_change_hands_between_batches(engine: Engine) -> None:
    """When a second relay joins while the first one's lanes are full, buckets with messages being sent stay
    until those have an answer, and no message is sent twice."""
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message("slow", b"-", f"k{number}") for number in range(200)])
    publisher, second = Gate("slow"), Recorder()
    with relaying(engine, publisher, lease=5, batch=20):
        wait_until(lambda: publisher.running["slow"] > 0)
        with relaying(engine, second, lease=5):
            quick = 0
            while not any(message.topic == "quick" for message in second.sent):
                publish(engine, *(f"-{number}" for number in range(20)), topic="quick")
                quick += 20
                wait_until(lambda: count(engine, TABLES.message) <= 200)
            publisher.opened.set()
            wait_until(lambda: not waiting(engine))
    ids = Counter(message.id for message in publisher.sent + second.sent)
    assert len(ids) == 200 + quick
    assert set(ids.values()) == {1}


@pytest.mark.parametrize("topic", ["orders", "*"])
@on("postgresql")
def test_a_pause_while_a_message_is_sent(engine: Engine, topic: str) -> None:
    """If its topic is paused during a send that fails, the message waits for the end of the pause, and so do
    those behind it."""
    publish(engine, "a1", "a2", "b1")
    publisher = Gate("orders")
    publisher.answer = lambda message: Unavailable("away", 0.0) if is_paused else ACCEPTED
    is_paused = True
    with relaying(engine, publisher) as relay:
        wait_until(lambda: publisher.running["orders"] == 1)
        pause(engine, topic)
        wait_until(lambda: bool(relay._rounds._scanner.paused))
        publisher.opened.set()
        wait_until(lambda: waiting(engine)["a1"].attempts == 1)
        time.sleep(1)
        assert sorted(publisher.names) == ["a1", "b1"]
        is_paused = False
        resume(engine, topic)
        wait_until(lambda: not waiting(engine))
    assert publisher.of("a") == ["a1", "a2"]


@on("sqlite", "postgresql", "mariadb")
def test_far_behind_a_slow_topic(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay reads past the messages of a slow topic even if a scan cannot leave all of them out."""
    monkeypatch.setattr(backlog, "_MOST_ABOVE", 200)
    engine = migrated.engine()
    fields = {"bucket": 1, "topic": "slow", "payload": b"-", "content_type": "x"}
    with engine.begin() as connection:
        rows = [fields | {"id": f"s{n}", "key": f"k{n}"} for n in range(3_000)]
        connection.execute(insert(TABLES.message), rows)
        connection.execute(insert(TABLES.message), [fields | {"id": "q", "key": "q", "topic": "quick"}])
    publisher = Gate("slow")
    # On PostgreSQL, scans begin at the oldest message while an older transaction has not ended.
    with engine.connect() as connection, relaying(engine, publisher):
        if migrated.name == "postgresql":
            Outbox().publish_many(connection, messages(["a1"]))
        wait_until(lambda: [message.topic for message in publisher.accepted] == ["quick"], timeout=30)
        connection.rollback()


@pytest.mark.parametrize("number", [1, 2])
@on("sqlite")
def test_a_thread_that_cannot_be_started(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """If a thread cannot be started, the relay raises the error after the running sends have ended."""
    publish(engine, "a1", topic="one")
    publish(engine, "b1", topic="two")
    start, begun = Thread.start, list[str]()

    def limited(thread: Thread) -> None:
        if thread.name.startswith("outbox send"):
            begun.append(thread.name)
            if len(begun) == number:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(Thread, "start", limited)
    with pytest.raises(RuntimeError, match="start new thread"):
        Relay(engine, Recorder()).run_once()
    assert len(waiting(engine)) == 3 - number
    assert count(engine, TABLES.relay) == 0


def test_a_commit_between_two_pages(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay is reading past the messages of a slow topic. Between two of its statements a message with a
    low sequence is committed, and then another one of its key is published: they are sent in this order."""
    engine = postgres.engine()
    same = {"bucket": 1, "payload": b"-", "content_type": "x"}

    def write(connection: Connection, topic: str, *names: str) -> None:
        rows = [same | {"id": name, "topic": topic, "key": name.rstrip("!")} for name in names]
        connection.execute(insert(TABLES.message), rows)

    with engine.begin() as connection:
        write(connection, "slow", *(f"s{number}" for number in range(20)))
    early = engine.connect()
    write(early, "quick", "a")
    with engine.begin() as connection:
        write(connection, "slow", *(f"t{number}" for number in range(60)))
    publisher = Gate("slow")
    relay = Relay(engine, publisher, poll=0.2, batch=1)
    scan, has_raced = relay._rounds._database.scan, Event()

    def scan_and_race(connection: Connection, wanted: Scan) -> ScanResult:
        found = scan(connection, wanted)
        has_read = max((letter.sequence for letter in found.letters), default=0) > 22
        if has_read and publisher.running["slow"] and 1 not in found.seen and not has_raced.is_set():
            has_raced.set()
            early.commit()
            with engine.begin() as other:
                write(other, "quick", "a!")
        return found

    monkeypatch.setattr(relay._rounds._database, "scan", scan_and_race)
    # Otherwise the round reads all again, once it has locked the lease.
    monkeypatch.setattr(Rounds, "next_tend", property(lambda _: 0.0, lambda _, value: None), raising=False)
    task = Task(relay.run)
    try:
        wait_until(lambda: len(publisher.accepted) == 2)
    finally:
        relay.stop()
        publisher.opened.set()
        task.result()
        early.close()
    assert has_raced.is_set()
    assert [message.id for message in publisher.accepted if message.key == "a"] == ["a", "a!"]
