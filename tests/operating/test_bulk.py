"""Operators' decisions about many messages of the outbox, on every database."""

import gzip
import json
import pickle
import signal
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count as count_up
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, select, update

import outbox
from inbox_outbox_base.words.deciding import packed, unpacked
from outbox import BulkResult, Envelope, Outbox, Outcome, Refused, Unavailable, Unknown
from outbox.errors import InvalidOption, WrongState
from tests.support.bulk_worker import COMMITS, MESSAGES, TOGETHER, retry_letters
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on, spread
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    count,
    dead,
    let_leases_end,
    name_of,
    publish,
    relay,
)
from tests.support.processes import workers

OUTCOMES: dict[str, Outcome] = {
    "dead": Refused("no"),
    "held": Refused("no"),
    "waiting": Unavailable("no", 3_600.0),
    "unknown": Unknown("no"),
}
# The first three of each have statements of their own.
RETRIED = ["dead", "held", "waiting", "unknown"]
STATES = ["dead", "delayed", "pending", "held", "waiting", "unknown"]


def put(engine: Engine, state: str, *names: str, **options: Any) -> list[str]:
    """Publish messages and bring them to a state."""
    made = publish(engine, *names, **options, delay=3_600 if state == "delayed" else None)
    fail(engine, state, *names)
    return made


def fail(engine: Engine, state: str, *names: str) -> None:
    """Send all messages that can be sent: these end in this state."""
    if state in OUTCOMES:
        answers = {name: [OUTCOMES[state]] for name in names}
        relay(engine, Recorder(answers), after_dead="hold" if state == "held" else "continue")
        later = datetime.now(UTC) + timedelta(hours=1)
        with engine.begin() as connection:
            c = TABLES.message.c
            these = c.retry_at.is_not(None) & c.payload.in_([name.encode() for name in names])
            connection.execute(update(TABLES.message).where(these).values(retry_at=later))


def names_in(engine: Engine, state: str) -> list[str]:
    """The names of the messages in a state."""
    ids = {each.id for each in outbox.peek(engine, 1_000, state=state)}
    tables = (TABLES.message, TABLES.delayed, TABLES.dead)
    with engine.connect() as connection:
        rows = [row for table in tables for row in connection.execute(select(table))]
    return sorted(name_of(row) for row in rows if row.id in ids)


@spread("state", RETRIED, elsewhere=3)
def test_retry_exactly_what_was_seen(engine: Engine, state: str) -> None:
    """With `seen`, only the messages of the listing are retried: not those beyond its limit, nor those that
    came later, even if their time is earlier."""
    put(engine, state, "a1", "b1", "c1")
    listed = outbox.peek(engine, 2, state=state)
    put(engine, state, "d1")
    with engine.begin() as connection:
        early = datetime.now(UTC) - timedelta(days=9)
        for table, column in ((TABLES.dead, "dead_at"), (TABLES.message, "failing_since")):
            connection.execute(update(table).where(table.c.key == "d").values({column: early}))
    answer = outbox.retry_all(engine, state, seen=listed.seen)
    assert (answer, answer.done, answer.changed) == (2, 2, 0)
    publisher = Recorder()
    relay(engine, publisher)
    assert sorted(publisher.names) == ["a1", "b1"]
    assert names_in(engine, state) == ["c1", "d1"]


@spread("state", STATES, elsewhere=3)
def test_drop_exactly_what_was_seen(engine: Engine, state: str) -> None:
    """The same for `drop_all`, in every state. The ids of dropped messages can be used again."""
    put(engine, state, "a1")
    with engine.begin() as connection:
        delay = 3_600 if state == "delayed" else None
        outbox.Outbox().publish(connection, "orders", b"b1", key="b", id="own", delay=delay)
    fail(engine, state, "b1")
    listed = outbox.peek(engine, 9, state=state)
    put(engine, state, "c1")
    answer = outbox.drop_all(engine, state, seen=listed.seen)
    assert (answer, answer.changed) == (2, 0)
    assert names_in(engine, state) == ["c1"]
    assert count(engine, TABLES.ids) == 0
    with engine.connect() as connection:
        assert connection.execute(select(TABLES.gone.c.topic)).scalars().all() == ["orders"]


@spread("state", RETRIED, elsewhere=3)
def test_what_has_changed_since_is_left(engine: Engine, state: str) -> None:
    """A message that was retried since, and came back into the same state, is not the one that was seen; one
    that was dropped is gone. Both are counted, and left as they are."""
    ids = put(engine, state, "a1", "b1", "c1")
    listed = outbox.peek(engine, state=state)
    outbox.retry(engine, ids[0])
    fail(engine, state, "a1")
    outbox.drop(engine, ids[1])
    for dry_run in (True, False):
        answer = outbox.retry_all(engine, state, seen=listed.seen, dry_run=dry_run)
        assert (answer, answer.changed) == (1, 2)
    relay(engine, Recorder())
    assert names_in(engine, state) == ["a1"]
    answer = outbox.drop_all(engine, state, seen=listed.seen)
    assert (answer, answer.changed) == (0, 3)
    assert names_in(engine, state) == ["a1"]


@on("sqlite")
def test_a_listing_of_all_that_wait(engine: Engine) -> None:
    """The `seen` of a listing of several states goes with each of them, and takes only its messages; those in
    other states have not changed."""
    put(engine, "held", "a1")
    put(engine, "waiting", "b1")
    put(engine, "unknown", "c1")
    seen = outbox.peek(engine).seen
    for state in ("held", "waiting", "unknown"):
        answer = outbox.retry_all(engine, state, seen=seen, dry_run=True)
        assert (answer, answer.changed) == (1, 0)


def test_the_error_chooses(engine: Engine) -> None:
    """A text in the error chooses messages, in listings and in decisions: in upper or lower case as it is
    given, and no character has a meaning."""
    errors = {"a1": "Queue 100% full", "b1": "queue 100% full", "c1": "queue 100x full", "d1": "_"}
    publish(engine, *errors)
    relay(engine, Recorder(lambda message: Refused(errors[name_of(message)])))
    assert [each.key for each in outbox.peek(engine, state="dead", error="queue 100%")] == ["b"]
    assert outbox.drop_all(engine, "dead", error="Queue") == 1
    assert outbox.drop_all(engine, "dead", error="_") == 1
    assert outbox.retry_all(engine, "dead", error="100% f") == 1
    assert [*dead(engine)] == ["c1"]
    put(engine, "held", "e1")
    held = outbox.peek(engine, state="held", error="no")
    assert outbox.retry_all(engine, "held", error="yes", seen=held.seen) == 0
    assert outbox.retry_all(engine, "held", error="no", seen=held.seen) == 1


@spread("state", RETRIED)
def test_seen_is_also_filtered(engine: Engine, state: str) -> None:
    """With `seen` and a filter, a message has to be in both; what the filter leaves out has not changed."""
    put(engine, state, "a1", "b1", topic="mail")
    put(engine, state, "c1")
    seen = outbox.peek(engine, state=state).seen
    answer = outbox.retry_all(engine, state, topic="mail", key="a", seen=seen)
    assert (answer, answer.changed) == (1, 0)
    relay(engine, Recorder())
    assert names_in(engine, state) == ["b1", "c1"]


@spread("state", STATES, elsewhere=3)
def test_a_dry_run(engine: Engine, state: str) -> None:
    """A dry run counts what would be taken, and changes nothing."""
    made = put(engine, state, "a1", "b1")
    before = contents(engine)
    assert outbox.drop_all(engine, state, dry_run=True) == 2
    assert outbox.drop_all(engine, state, key="a", dry_run=True) == 1
    assert outbox.drop(engine, made[0], dry_run=True) == state
    if state in RETRIED:
        assert outbox.retry_all(engine, state, dry_run=True) == 2
    dead_letters = 2 if state == "dead" else 0
    assert outbox.purge_dead(engine, 0, dry_run=True) == dead_letters
    assert outbox.purge_dead(engine, 0, topic="mail", dry_run=True) == 0
    assert outbox.purge_dead(engine, 3_600, dry_run=True) == 0
    assert contents(engine) == before


def contents(engine: Engine) -> list[Any]:
    """All rows of the outbox, and all decisions."""
    tables = (TABLES.message, TABLES.delayed, TABLES.dead, TABLES.gone, TABLES.relay)
    with engine.connect() as connection:
        rows = [connection.execute(select(table)).all() for table in tables]
    return [*rows, outbox.decisions(engine)]


@spread("is_alive, state", [(True, "pending"), (False, "pending"), (False, "unknown")], elsewhere=3)
def test_messages_that_are_being_sent(engine: Engine, is_alive: bool, state: str) -> None:
    """`drop_all` leaves what a relay is sending, and counts it as changed, also in a dry run. Of what a lost
    relay was sending nobody knows whether it was taken: it is dropped only where its state says so."""
    (sent,) = put(engine, state, "a1")
    if state == "unknown":
        outbox.retry(engine, sent)
    answers: list[BulkResult] = []

    def answer(message: Envelope) -> Outcome:
        if not is_alive:
            let_leases_end(engine)
        answers.extend(outbox.drop_all(engine, state, dry_run=each) for each in (True, False))
        if is_alive:
            with pytest.raises(WrongState):
                outbox.drop(engine, sent, dry_run=True)
        return ACCEPTED

    relay(engine, Recorder(answer))
    expected = (1, 0) if state == "unknown" else (0, 1)
    assert [(each.done, each.changed) for each in answers] == [expected, expected]


def test_the_order_of_keys(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each key, letters that are retried together leave in the order in which they were published, however
    many transactions it takes."""
    monkeypatch.setattr("outbox._operating.bulk._WRITTEN", 7)
    names = [f"{key}{number}" for number in range(30) for key in "ab"]
    publish(engine, *names)
    relay(engine, Recorder(lambda _: Refused("no")))
    seen = outbox.peek(engine, 100, state="dead").seen
    assert outbox.retry_all(engine, "dead", seen=seen) == 60
    assert [each.count for each in outbox.decisions(engine)] == [4, *8 * [7]]
    publisher = Recorder()
    relay(engine, publisher)
    for key in "ab":
        assert publisher.of(key) == [name for name in names if name[0] == key]


@on("sqlite")
@pytest.mark.parametrize("state", RETRIED)
def test_a_seen_that_names_a_message_twice(engine: Engine, state: str) -> None:
    """Text that somebody else has made counts and takes each message once."""
    put(engine, state, "a1", "b1")
    kind, *places = unpacked(outbox.peek(engine, state=state).seen)
    assert outbox.retry_all(engine, state, seen=packed(kind, [*places, *places])) == 2


@on("sqlite")
def test_a_seen_names_ten_thousand(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer listing, which is a list, names its first messages only."""
    monkeypatch.setattr("inbox_outbox_base.words.deciding.MOST_SEEN", 3)
    put(engine, "dead", "a1", "b1", "c1", "d1", "e1")
    listed = outbox.peek(engine, state="dead")
    assert (len(listed), isinstance(listed, list)) == (5, True)
    assert outbox.retry_all(engine, "dead", seen=listed.seen) == 3
    assert names_in(engine, "dead") == ["d1", "e1"]


@spread("decide", [outbox.retry_all, outbox.drop_all], elsewhere=2)
def test_while_others_die(engine: Engine, decide: Callable[..., BulkResult]) -> None:
    """While relays let more and more messages die, and send what is retried, two operators take each letter
    that was seen once, and no other."""
    first = put(engine, "dead", *(f"-{number}" for number in range(100)))
    seen = outbox.peek(engine, 1_000, state="dead").seen
    stop = threading.Event()

    publisher = Recorder(lambda each: Refused("no") if "later" in name_of(each) else ACCEPTED)

    def die() -> None:
        for number in count_up():
            if stop.is_set():
                break
            publish(engine, *(f"-later{number}-{each}" for each in range(5)))
            relay(engine, publisher)
        relay(engine, publisher)

    with ThreadPoolExecutor(3) as pool:
        dying = pool.submit(die)
        try:
            answers = list(pool.map(lambda _: decide(engine, "dead", seen=seen), range(2)))
        finally:
            stop.set()
        dying.result()
    assert sum(answers) == 100
    assert sum(each.changed for each in answers) == 100
    left = {row.id for row in dead(engine).values()}
    assert left
    assert left.isdisjoint(first)
    sent = sorted(each.id for each in publisher.accepted)
    assert sent == (sorted(first) if decide is outbox.retry_all else [])
    assert sum(each.count for each in outbox.decisions(engine)) == 100


@spread("after_dead, others", product(["hold", "continue"], [outbox.retry_all, outbox.drop_all]), elsewhere=4)
def test_of_several_operators_one_wins(engine: Engine, after_dead: str, others: Any) -> None:
    """Two operators take the same messages while a relay runs: each message is taken by one of them. The
    other one is told that it has changed, and what is stored adds up."""
    state = "held" if after_dead == "hold" else "dead"
    put(engine, state, *(f"{key}1" for key in "abcdefgh"))
    seen, barrier, stop = outbox.peek(engine, state=state).seen, threading.Barrier(2), threading.Event()

    def run() -> None:
        while not stop.is_set():
            relay(engine, Recorder())

    def take(act: Any) -> BulkResult:
        barrier.wait()
        result: BulkResult = act(engine, state, seen=seen)
        return result

    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(run)
        try:
            answers = list(pool.map(take, [outbox.retry_all, others]))
        finally:
            stop.set()
        running.result()
    assert (sum(answers), sum(each.changed for each in answers)) == (8, 8)
    assert sum(each.count for each in outbox.decisions(engine)) == 8
    assert names_in(engine, state) == []


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_call_that_is_killed(migrated: Database, point: str) -> None:
    """A call that is killed with kill -9 in the middle has done what is stored, and nothing else."""
    engine = migrated.engine()
    put(engine, "dead", *(f"-{number}" for number in range(MESSAGES)))
    with workers((retry_letters, migrated.url, point)) as (killed,):
        assert killed.exit_code() == -signal.SIGKILL
    done = TOGETHER * (COMMITS if point == "after" else COMMITS - 1)
    assert [each.count for each in outbox.decisions(engine)] == [TOGETHER] * (done // TOGETHER)
    assert (count(engine, TABLES.message), count(engine, TABLES.dead)) == (done, MESSAGES - done)


def made_by_hand(*lines: str) -> str:
    """A `seen` that no listing has made."""
    return urlsafe_b64encode(gzip.compress("\n".join(lines).encode())).decode()


@on("sqlite")
def test_wrong_options(engine: Engine) -> None:
    """An invalid option is refused; the error names it, and nothing is changed."""
    put(engine, "dead", "a1")
    put(engine, "held", "b1")
    letters, held = (outbox.peek(engine, state=each).seen for each in ("dead", "held"))
    kind, *_ = unpacked(held)
    forged: list[Any] = [[0, 2**63, "a", "v"], [2**31, 1, "a", "v"], [0, 1, "a\0", "v"]]
    forged += [[0, 1, "\ud800", "v"], [0, True, "a", "v"], [0, 1, "a"], {}, 7, 100_000 * [[]]]
    texts = [made_by_hand(kind, json.dumps(each)) for each in forged]
    texts.append(made_by_hand(kind, *10_001 * [json.dumps([0, 1, "a", "v"])]))
    for text in texts:
        with pytest.raises(InvalidOption, match="it is not the `seen` of a listing"):
            outbox.retry_all(engine, "held", seen=text)
    for decide, said in (
        (
            lambda: outbox.retry_all(engine, "dead", seen=held),
            "seen: it came with a listing of messages that",
        ),
        (lambda: outbox.drop_all(engine, "held", seen=letters), "seen: it came with a listing of dead"),
        (lambda: outbox.drop_all(engine, "dead", seen="nonsense"), "seen='nonsense': it is not the `seen`"),
        (lambda: outbox.drop_all(engine, "dead", seen=letters[:-8]), "it is not the `seen` of a listing"),
        (lambda: outbox.drop_all(engine, "dead", seen=7), r"seen=7: expected"),  # type: ignore[arg-type]
        (lambda: outbox.retry_all(engine, "pending"), "state='pending': expected dead, held, waiting"),
        (lambda: outbox.drop_all(engine, "lost"), "state='lost'"),
        (lambda: outbox.drop_all(engine, "dead", error=""), "error=''"),
        (lambda: outbox.drop_all(engine, "delayed", error="a"), "error='a': delayed messages have none"),
        (lambda: outbox.peek(engine, state="delayed", error="a"), "error='a': delayed messages have none"),
        (lambda: outbox.drop_all(engine, "dead", topic="*"), r"topic='\*'"),
        (lambda: outbox.drop_all(engine, "dead", dry_run=1), "dry_run=1"),  # type: ignore[arg-type]
        (lambda: outbox.drop(engine, "1", dry_run=1), "dry_run=1"),  # type: ignore[arg-type]
        (lambda: outbox.purge_dead(engine, 0, dry_run=1), "dry_run=1"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidOption, match=said):
            decide()
    assert (names_in(engine, "dead"), names_in(engine, "held")) == (["a1"], ["b1"])


def test_the_result_is_a_number() -> None:
    """It compares and prints as one, and can be copied to another process."""
    result = BulkResult(3, 1)
    assert (result == 3, f"{result:,}", repr(result)) == (True, "3", "BulkResult(done=3, changed=1, left=0)")
    copied = pickle.loads(pickle.dumps(result))  # noqa: S301 - our own
    assert (copied.done, copied.changed) == (3, 1)


@pytest.mark.parametrize("is_bulk", [True, False])
@on(*WITH_WRITERS)
def test_a_delayed_message_whose_id_is_used_again(migrated: Database, is_bulk: bool) -> None:
    """A decision about a delayed message deletes none that was published later with its id."""
    engine, other = migrated.engine(), migrated.engine()

    def publish_it() -> None:
        with other.begin() as connection:
            Outbox().publish(connection, "orders", "a", delay=3_600, id="order-1")

    def replace() -> None:
        outbox.drop(other, "order-1")
        publish_it()

    publish_it()
    acts = [replace]

    @event.listens_for(engine, "before_cursor_execute")
    def before(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if acts and statement.startswith("DELETE FROM outbox_delayed"):
            acts.pop()()

    if is_bulk:
        result = outbox.drop_all(engine, "delayed", seen=outbox.peek(engine, state="delayed").seen)
        assert (result.done, result.changed) == (0, 1)
    else:
        with pytest.raises(WrongState, match="it has just been changed"):
            outbox.drop(engine, "order-1")
    assert [each.id for each in outbox.peek(engine, state="delayed")] == ["order-1"]
