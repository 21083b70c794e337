"""Messages with ids chosen by the producer: publishing an id again adds nothing while the outbox knows it."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from inbox import Event, EventKind, is_transient
from inbox_outbox_base.databases.registry import relaying
from outbox import (
    Envelope,
    Message,
    MessageState,
    Outbox,
    Outcome,
    Refused,
    Relay,
    drop,
    peek,
    purge_dead,
    retry,
)
from outbox._relaying.chores import Overtaken, forget_sent
from outbox.errors import AlreadyPublished, InvalidMessage, InvalidOption
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on, spread
from tests.support.outbox_publishers import ACCEPTED, TABLES, Recorder, let_leases_end
from tests.support.published import TOPIC, WAYS, Way, break_off, relayed, texts
from tests.support.together import Task, in_between, together, wait_until_blocked

pytestmark = [pytest.mark.mysql, pytest.mark.quick("postgresql", "sqlite")]

OUTBOX = Outbox()
STRANGE = ["a", "A", "a ", " a", "{a,b}", 'say "hi"', "back\\slash", "'; --", "%s", "x" * 128, "NULL"]

every_way = spread("way", WAYS.values())


def publish(engine: Engine, text: str, id: str = "order-1", **options: Any) -> str:  # noqa: A002
    """Publish in a new transaction."""
    with engine.begin() as connection:
        return OUTBOX.publish(connection, TOPIC, text, id=id, **options)


def refuse(engine: Engine, **options: Any) -> None:
    """Make the waiting messages dead letters."""
    recorder = Recorder(lambda _: Refused("no"))
    Relay(engine, recorder, **options).run_once()


@every_way
def test_publishing_again_adds_nothing(engine: Engine, way: Way) -> None:
    """An id that is published again in the same batch, the same transaction or a later one adds nothing; only
    the first message is sent."""
    with way(engine) as handle:
        assert OUTBOX.publish(handle, TOPIC, "1", id="a") == "a"
        assert OUTBOX.publish(handle, TOPIC, "never", id="a") == "a"
        many = [("2", "b"), ("never", "a"), ("never", "b"), ("3", None), ("4", "c")]
        ids = OUTBOX.publish_many(handle, [Message(TOPIC, text, "k", id=each) for text, each in many])
        assert [*ids[:3], ids[4]] == ["b", "a", "b", "c"]
    with way(engine) as handle:
        assert OUTBOX.publish(handle, TOPIC, "never", id="c") == "c"
        OUTBOX.publish(handle, TOPIC, "5", "k", id="d")
    left = relayed(engine)
    assert sorted(each.payload.decode() for each in left) == ["1", "2", "3", "4", "5"]
    assert {each.id for each in left} - {"a", "b", "c", "d"} == {ids[3]}
    assert [each.payload for each in left if each.key] == [b"2", b"3", b"4", b"5"]


def be_delayed(engine: Engine) -> None:
    publish(engine, "first", delay=3_600)


def be_dead(engine: Engine) -> None:
    publish(engine, "first")
    refuse(engine)


def be_held(engine: Engine) -> None:
    publish(engine, "first", key="k")
    refuse(engine, after_dead="hold")


def be_revived(engine: Engine) -> None:
    be_dead(engine)
    retry(engine, "order-1")


def be_sent(engine: Engine) -> None:
    publish(engine, "first")
    assert texts(engine, keep_sent=3_600) == ["first"]


@spread("be", [be_delayed, be_dead, be_held, be_revived, be_sent])
def test_an_id_in_use(engine: Engine, be: Callable[[Engine], None]) -> None:
    """An id is in use while its message is delayed, dead, held, retried, or recorded as sent."""
    be(engine)
    before = [*peek(engine), *peek(engine, state="dead"), *peek(engine, state="delayed")]
    assert publish(engine, "never") == "order-1"
    with engine.begin() as connection:
        OUTBOX.publish_many(connection, [Message(TOPIC, "never", id="order-1")] * 20)
        OUTBOX.publish(connection, TOPIC, "never", delay=1, id="order-1")
    after = [*peek(engine), *peek(engine, state="dead"), *peek(engine, state="delayed")]
    assert after == before
    assert len(before) == (be is not be_sent)


def leave(engine: Engine) -> None:
    assert texts(engine) == ["first"]


def leave_the_record(engine: Engine) -> None:
    assert texts(engine, keep_sent=0.001) == ["first"]
    assert texts(engine) == []  # it keeps no records itself


def be_dropped(engine: Engine) -> None:
    assert drop(engine, "order-1") is MessageState.PENDING


def be_dropped_when_dead(engine: Engine) -> None:
    refuse(engine)
    assert drop(engine, "order-1") is MessageState.DEAD


def be_purged(engine: Engine) -> None:
    refuse(engine)
    assert purge_dead(engine, 0) == 1


@spread("go", [leave, leave_the_record, be_dropped, be_dropped_when_dead, be_purged])
def test_an_id_that_is_free_again(engine: Engine, go: Callable[[Engine], None]) -> None:
    """An id can be used again once the outbox no longer knows it."""
    publish(engine, "first")
    go(engine)
    publish(engine, "second")
    publish(engine, "never")
    assert texts(engine) == ["second"]


@every_way
def test_a_rollback_frees_the_ids(engine: Engine, way: Way) -> None:
    """Rolling back a transaction or a savepoint frees the ids that it used."""
    with pytest.raises(ZeroDivisionError):
        break_off(way, engine, lambda handle: OUTBOX.publish(handle, TOPIC, "never", id="a"))
    with way(engine) as handle:
        OUTBOX.publish(handle, TOPIC, "before")
        savepoint = handle.begin_nested()
        OUTBOX.publish(handle, TOPIC, "never", id="a")
        savepoint.rollback()
        OUTBOX.publish(handle, TOPIC, "ever", id="a")
    assert sorted(texts(engine)) == ["before", "ever"]


@spread("kind, end", product(["connection", "session"], ["commit", "rollback"]), elsewhere=2)
def test_two_producers_of_one_id(migrated: Database, kind: str, end: str) -> None:
    """The second producer of an id waits for the first one: it adds nothing if that one commits, and adds its
    own message if that one rolls back."""

    def second() -> None:
        handle: Any = migrated.engine().connect() if kind == "connection" else Session(migrated.engine())
        with handle:
            OUTBOX.publish(handle, TOPIC, "second", id="a")
            handle.commit()

    with migrated.engine().connect() as connection:
        OUTBOX.publish(connection, TOPIC, "first", id="a")
        task = Task(second)
        wait_until_blocked(migrated.engine())
        getattr(connection, end)()
    task.result()
    assert texts(migrated.engine()) == (["first"] if end == "commit" else ["second"])


def has_published(engine: Engine, messages: list[Message]) -> bool:
    """Publish in one transaction; return False if it has to be retried."""
    try:
        with Session(engine) as session, session.begin():
            OUTBOX.publish_many(session, messages)
    except DBAPIError as error:
        if not is_transient(error):
            raise
        return False
    return True


def test_many_producers_of_the_same_ids(migrated: Database) -> None:
    """When several producers publish the same ids in batches of any order, each id is added exactly once.
    (InnoDB may detect a deadlock, which is transient.)"""
    ids = [f"order-{number}" for number in range(30)]

    def work(number: int) -> None:
        engine = migrated.engine()
        turned = ids[number * 5 :] + ids[: number * 5]
        for start in range(0, len(turned), 15):
            part = [Message(TOPIC, "x", id=each) for each in turned[start : start + 15]]
            while not has_published(engine, part):
                pass

    together([lambda number=number: work(number) for number in range(4)])  # type: ignore[misc]
    assert Counter(each.id for each in relayed(migrated.engine())) == Counter(ids)


@spread("size, keep_sent", product([20, 1], [None, 0.001]), elsewhere=2)
def test_ids_of_any_characters(engine: Engine, size: int, keep_sent: float | None) -> None:
    """Ids compare byte for byte, and accepted messages are deleted, whatever characters are in their ids."""
    for rounds in range(2):
        with engine.begin() as connection:
            for start in range(0, len(STRANGE), size):
                part = STRANGE[start : start + size]
                OUTBOX.publish_many(connection, [Message(TOPIC, str(rounds), id=each) for each in part])
        left = relayed(engine, keep_sent=keep_sent)
        assert Counter(each.id for each in left) == Counter(STRANGE)
        assert relayed(engine, keep_sent=keep_sent) == []


@pytest.mark.parametrize("given", ["", "x" * 129, "Ä", "a\nb", "a\0", "\x7f", 7, b"a", ("a",)], ids=repr)
def test_bad_ids(postgres: Database, given: Any) -> None:
    """An invalid id raises an error that names it, before anything is written."""
    with postgres.engine().begin() as connection:
        with pytest.raises(InvalidMessage, match=r"^id="):
            OUTBOX.publish(connection, TOPIC, "never", id=given)
        with pytest.raises(InvalidMessage, match=r"^id="):
            OUTBOX.publish_many(connection, [Message(TOPIC, "never"), Message(TOPIC, "never", id=given)])
    assert texts(postgres.engine()) == []


def test_messages_without_an_id_of_their_own_cost_nothing(engine: Engine) -> None:
    """For messages without a chosen id, neither the producer nor the relay queries the table of ids."""
    seen: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: object, __: object, statement: str, *___: object) -> None:
        seen.append(statement)

    with engine.begin() as connection:
        OUTBOX.publish_many(connection, [Message(TOPIC, "x")] * 20)
        OUTBOX.publish(connection, TOPIC, "x", delay=0.001)
    while len(relayed(engine, keep_sent=0.001)) > 0:
        pass
    assert [each for each in seen if "INSERT INTO outbox_message" in each]
    assert [each for each in seen if "outbox_id" in each and "pg_class" not in each] == []


@on(*WITH_WRITERS)
def test_open_transactions_do_not_hold_up_the_relay(migrated: Database) -> None:
    """The relay sends a message and frees its id although two transactions are open: one has published
    another id, one the same id again."""
    engine = migrated.engine()
    publish(engine, "first", id="a")
    with engine.connect() as other, engine.connect() as again:
        OUTBOX.publish(other, TOPIC, "other", id="b")
        OUTBOX.publish(again, TOPIC, "never", id="a")
        assert texts(engine) == ["first"]
        publish(engine, "second", id="a")
        other.commit()
        again.commit()
    assert sorted(texts(engine)) == ["other", "second"]


@on("postgresql", "mariadb")
def test_a_dead_letter_retried_during_a_purge_keeps_its_id(migrated: Database) -> None:
    """A dead letter that an operator retries during a purge keeps its id: no other message can use it."""
    purging, engine = migrated.engine(), migrated.engine()
    publish(engine, "1")
    refuse(engine)
    in_between(purging, "SELECT outbox_dead.id", lambda: retry(engine, "order-1"))
    assert purge_dead(purging, 0) == 0
    publish(engine, "never")
    assert texts(engine) == ["1"]


@on("postgresql", "mariadb")
def test_two_relays_forget_the_same_record(migrated: Database) -> None:
    """When two relays forget the same record, the slower one does not free an id that was used again in the
    meantime."""
    engine = migrated.engine()
    slow, quick = (migrated.engine(isolation_level="READ COMMITTED") for _ in range(2))
    database = relaying(engine.dialect.name, TABLES)
    publish(engine, "1")
    Relay(engine, Recorder(), keep_sent=0.001).run_once()

    def forget_and_publish() -> None:
        with quick.begin() as connection:
            forget_sent(connection, database)
        publish(engine, "2")

    in_between(slow, "SELECT outbox_sent.id", forget_and_publish)
    with pytest.raises(Overtaken), slow.begin() as connection:
        forget_sent(connection, database)
    publish(engine, "never")
    assert texts(engine) == ["2"]


def test_an_id_of_a_message_that_was_dropped_while_it_was_sent(engine: Engine) -> None:
    """The relay's lease had expired, so its message could be dropped and the id used again: when the relay
    records its late send, it does not free that id."""

    def answer(message: Envelope) -> Outcome:
        late.stop()
        let_leases_end(engine)
        drop(engine, message.id)
        publish(engine, "1")
        return ACCEPTED

    publish(engine, "1")
    late = Relay(engine, Recorder(answer))
    late.run_once()
    publish(engine, "1")
    assert texts(engine) == ["1"]


@on("postgresql", "mariadb")
def test_a_purge_whose_first_letters_others_have_taken(migrated: Database) -> None:
    """If other callers remove the first dead letters of a purge, it continues with the remaining ones."""
    purging, engine = migrated.engine(), migrated.engine()
    publish(engine, "1")
    refuse(engine)

    def take_it_and_leave_another() -> None:
        drop(engine, "order-1")
        publish(engine, "2", "order-2")
        refuse(engine)

    in_between(purging, "SELECT outbox_dead.id", take_it_and_leave_another)
    assert purge_dead(purging, 0) == 1
    assert not peek(engine, state="dead")


REFUSING = Outbox(on_repeat="raise")


@every_way
def test_publishing_again_raises(engine: Engine, way: Way) -> None:
    """With `on_repeat="raise"`, publishing an id again raises, in every kind of transaction."""
    with way(engine) as handle:
        REFUSING.publish_many(handle, [Message(TOPIC, "1", id="a"), Message(TOPIC, "2", id="b")])
    many = [Message(TOPIC, "never", id=each) for each in ("c", "b", "d", "c", "a")]

    def again() -> None:
        with way(engine) as handle:
            REFUSING.publish(handle, TOPIC, "never")
            REFUSING.publish_many(handle, many)

    with pytest.raises(AlreadyPublished, match=r"^id='b', 'c', 'a': the outbox knows") as raised:
        again()
    assert raised.value.ids == ("b", "c", "a")
    with way(engine) as handle:
        REFUSING.publish_many(handle, [Message(TOPIC, "3", id="c"), Message(TOPIC, "4", id="d")])
    assert sorted(texts(engine)) == ["1", "2", "3", "4"]


@on("sqlite", "postgresql", "mariadb")
def test_going_on_after_a_repeated_id(engine: Engine) -> None:
    """A caller on a Connection that catches the error may go on: only the repeated messages are missing, and
    every id that is then in use has its message."""
    publish(engine, "1", id="a")
    with engine.begin() as connection:
        with pytest.raises(AlreadyPublished):
            REFUSING.publish_many(connection, [Message(TOPIC, each, id=each) for each in "abcdeabcde"])
        REFUSING.publish(connection, TOPIC, "f", id="f")
    assert sorted(texts(engine)) == ["1", "b", "c", "d", "e", "f"]
    for each in "abcdef":
        publish(engine, each, id=each)
    assert sorted(texts(engine)) == ["a", "b", "c", "d", "e", "f"]


@spread("on_repeat, end", product(["ignore", "raise"], ["commit", "rollback"]))
def test_repeats_are_told_after_the_transaction(engine: Engine, on_repeat: Any, end: str) -> None:
    """Each repeated message is an event, whether the transaction commits or not; hooks are called once it has
    ended, when the connection begins the next one or is returned."""
    told: list[Event] = []

    def hook(told_of: Event) -> None:
        with engine.connect() as other:  # would wait if the transaction still had its locks
            OUTBOX.publish(other, TOPIC, "never", id=f"free-{len(told)}")
        told.append(told_of)

    watched = Outbox(on_repeat=on_repeat, on_event=hook)
    publish(engine, "1", id="a")
    raised = nullcontext() if on_repeat == "ignore" else pytest.raises(AlreadyPublished)
    with engine.connect() as connection:
        for number in range(2):
            watched.publish(connection, TOPIC, "2", id=f"free-{number}")
            with raised:
                watched.publish(connection, TOPIC, "never", key="k", id="a")
            before = len(told)
            getattr(connection, end)()
            assert len(told) == before
        assert len(told) == 1
    assert told == [Event(kind=EventKind.REPEATED, topic=TOPIC, key="k", message_id="a")] * 2


def test_repeats_of_a_session(postgres: Database) -> None:
    """A Session's repeated messages are told after its commit, or after the commit that they made fail."""
    told: list[str | None] = []
    engine = postgres.engine()
    publish(engine, "1", id="a")
    for on_repeat in ("ignore", "raise"):
        watched = Outbox(on_repeat=on_repeat, on_event=lambda each: told.append(each.message_id))
        expected = nullcontext() if on_repeat == "ignore" else pytest.raises(AlreadyPublished)
        with Session(engine) as session, expected:
            assert watched.publish(session, TOPIC, "never", id="a") == "a"
            session.commit()
        assert told == ["a"]
        told.clear()
    assert texts(engine) == ["1"]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"on_repeat": "skip"}, "on_repeat='skip': expected one of"), ({"on_event": 7}, "on_event=7: expected")],
)
def test_bad_options_about_repeats(options: Any, said: str) -> None:
    """An invalid option is named."""
    with pytest.raises(InvalidOption, match=said):
        Outbox(**options)
