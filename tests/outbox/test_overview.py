"""The outbox on an operator's first page."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text, update

import outbox
from inbox_outbox._exit import NOT_TAKEN
from inbox_outbox._operating.problems import HealthLimits, problems
from inbox_outbox._outbox import _print_status
from inbox_outbox_base.tables.outbox import OUTBOX
from outbox import Accepted, Count, OutboxOverview, Refused, RejectedTopic, Relay, Unavailable, Unknown
from outbox._operating.overviews import in_line
from outbox.errors import InvalidOption, TablesMissing
from tests.support.database import Database
from tests.support.filling import FAILED, TOPICS, fill_outbox
from tests.support.on_servers import WITH_WRITERS, on
from tests.support.outbox_publishers import (
    TABLES,
    Recorder,
    due_unmoved,
    in_every_state,
    let_leases_end,
    publish,
    relay,
    waiting,
)
from tests.support.processes import wait_until
from tests.support.reads import recorded, rows_read, scans
from tests.support.relay.crashes import running

STATES = ("pending", "waiting", "unknown", "held", "delayed", "dead")
MILLION = 1_000_000


@pytest.fixture
def engine(migrated: Database) -> Engine:
    return migrated.engine()


def counts(found: OutboxOverview) -> dict[str, str]:
    return {state: str(getattr(found, state)) for state in STATES}


def test_an_empty_outbox(engine: Engine) -> None:
    """Nothing waits, and nobody has ever sent anything: all counts are exact."""
    found = outbox.overview(engine)
    assert set(counts(found).values()) == {"0"}
    assert (found.topics, found.relays, found.no_relay_since, found.oldest_age) == ((), (), None, None)
    assert (found.buckets, found.unowned, found.stray, found.has_more_topics) == (64, 64, Count(0), False)


def test_it_agrees_with_the_status(engine: Engine) -> None:
    """A small outbox is counted exactly: each message once, and the same as `status` says."""
    in_every_state(engine)
    found, status = outbox.overview(engine), outbox.status(engine)
    assert counts(found) == {state: str(getattr(status, state)) for state in STATES}
    assert found.oldest_age is not None
    assert status.oldest_age is not None
    assert 0 <= status.oldest_age - found.oldest_age < 60


@on("postgresql", "mariadb")
def test_a_topic_that_the_broker_rejects(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """The relay's row says since when and until when the relay backs off from the topic, and why, without
    passwords, and health says so after some time, unless the topic is paused. It ends with the first message
    that the broker takes."""
    away = Unavailable("amqp://shop:secret@broker does not answer " + 300 * "!", 0.1)
    publisher = Recorder(lambda message: away if is_away and message.topic == "mail" else Accepted())
    is_away = True
    publish(engine, "a1", "b1", topic="mail")
    publish(engine, "c1")

    def rejected() -> RejectedTopic | None:
        return next((each.rejected for each in outbox.overview(engine).topics if each.rejected), None)

    def troubles() -> list[int]:
        found = outbox.overview(engine)
        return [each.code for each in problems(None, found, HealthLimits(rejected=timedelta()))]

    with running(Relay(engine, publisher, poll=0.05)):
        wait_until(lambda: rejected() is not None)
        wait_until(lambda: not waiting(engine).keys() - {"a1", "b1"})
        found = rejected()
        assert found is not None
        assert (found.topic, found.known, found.reason[:40]) == (
            "mail",
            2,
            "amqp://shop:***@broker does not answer !",
        )
        assert len(found.reason) == 200
        now = outbox.overview(engine).database.now
        assert now - timedelta(minutes=1) < found.since < found.until < now + timedelta(minutes=3)
        assert outbox.status(engine).relays[0].rejected[0].topic == "mail"
        assert troubles() == [NOT_TAKEN]
        _print_status(outbox.status(engine))
        assert "The broker has rejected topic 'mail' since 20" in capsys.readouterr().out
        outbox.pause(engine, "mail")
        assert troubles() == []
        is_away = False
        outbox.resume(engine, "mail")
        wait_until(lambda: not waiting(engine))
        wait_until(lambda: outbox.status(engine).relays[0].rejected == ())


def test_a_topic_says_why_it_waits(engine: Engine) -> None:
    """A topic names its oldest failed message with its error, and when it is sent again; what waits for
    somebody comes first."""
    publish(engine, "a1", "b1", topic="mail")
    publish(engine, "c1", "d1", topic="sms")
    publish(engine, "e1", topic="fax")
    answers = {"a1": [Unavailable("the queue is full", 3_600.0)], "c1": [Refused("no such number")]}
    relay(engine, Recorder(answers), after_dead="hold")
    publish(engine, "a2", topic="mail")
    outbox.pause(engine, "mail")
    sms, mail = outbox.overview(engine).topics
    assert (sms.topic, sms.held, sms.held_keys, sms.pending, sms.is_paused) == (
        *("sms", Count(1), Count(1), Count(0), False),
    )
    assert (mail.topic, mail.waiting, mail.pending, mail.is_paused) == ("mail", Count(1), Count(1), True)
    rows = waiting(engine)
    assert (mail.error, mail.error_id) == ("the queue is full", rows["a1"].id)
    assert (sms.error, sms.error_id) == ("no such number", rows["c1"].id)
    assert mail.retry_at == rows["a1"].retry_at
    assert (sms.retry_at, sms.oldest_age) == (None, None)
    assert mail.oldest_age is not None


def test_dead_letters_by_topic(engine: Engine) -> None:
    """A topic of which nothing else is left shows its dead letters and the newest one's error."""
    publish(engine, "a1", "b1", topic="mail")
    relay(engine, Recorder({"a1": [Refused("too long")], "b1": [Refused("too long")]}))
    (mail,) = outbox.overview(engine).topics
    assert (mail.topic, mail.dead, mail.error, mail.pending) == ("mail", Count(2), "too long", Count(0))


@on("sqlite")
def test_a_delayed_message_that_is_due(engine: Engine) -> None:
    """It counts for the oldest age, as no relay has moved it."""
    due_unmoved(engine, "a1", hours=24, ago=0.5)
    found = outbox.overview(engine)
    assert found.next_due is not None
    assert found.oldest_age == pytest.approx(1_800, abs=60)


def test_messages_in_buckets_that_do_not_exist(engine: Engine) -> None:
    """They are counted, and the oldest may be one of them."""
    publish(engine, "a1", topic="mail")
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(bucket=1_000))
    found = outbox.overview(engine)
    assert (found.pending, found.stray) == (Count(1), Count(1))
    assert [each.topic for each in found.topics] == ["mail"]
    assert found.oldest_age is not None


@on("sqlite")
def test_many_buckets_that_do_not_exist(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages in them are counted like others: held ones in one bucket hide none in another. If there are
    too many such buckets, the counts are lower bounds."""
    publish(engine, *("a" * length for length in range(1, 121)))
    c = TABLES.message.c
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(bucket=1_000 + c.sequence % 3))
        held = update(TABLES.message).where(c.bucket != 1_002)
        connection.execute(held.values(state="held", error="no", attempts=1))
    found = outbox.overview(engine)
    assert (found.pending, found.held, found.stray) == (Count(40), Count(80), Count(120))
    assert found.is_oldest_known
    assert found.oldest_age is not None
    monkeypatch.setattr(in_line, "_STRAY_BUCKETS", 2)
    found = outbox.overview(engine)
    assert (found.pending, found.held) == (Count(0, "at least"), Count(80, "at least"))
    assert not found.is_oldest_known


def test_a_message_without_an_answer_is_sent_again(engine: Engine) -> None:
    """It is known when, as for one that was not taken."""
    publish(engine, "a1", topic="mail")
    relay(engine, Recorder({"a1": [Unknown("silence")]}))
    (mail,) = outbox.overview(engine).topics
    assert mail.retry_at == waiting(engine)["a1"].retry_at


@on("sqlite")
def test_held_messages_that_hide_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the front of a bucket holds nothing else, it looks behind it; if that is no end of held messages, it
    says that the oldest message is not known."""
    publish(engine, *("h" * length for length in range(1, 102)))
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(state="held", error="no", attempts=1))
    found = outbox.overview(engine)
    assert (found.pending, found.held, found.is_oldest_known) == (Count(0), Count(101), True)
    publish(engine, "h")
    found = outbox.overview(engine)
    assert (found.pending, found.held, found.is_oldest_known) == (Count(1), Count(101), True)
    assert found.oldest_age is not None
    monkeypatch.setattr(in_line, "_FRONT", 640)
    monkeypatch.setattr(in_line, "_BEHIND", 1)
    found = outbox.overview(engine)
    assert (found.pending, found.oldest_age, found.is_oldest_known) == (Count(0, "at least"), None, False)


def test_since_when_no_relay_runs(engine: Engine) -> None:
    """After a relay's normal end, and after its loss, it is known since when nobody sends; buckets of a lost
    relay count as those of none."""
    seen: list[OutboxOverview] = []

    class Looking(Recorder):
        def send(self, batch):  # type: ignore[no-untyped-def]
            seen.append(outbox.overview(engine))
            let_leases_end(engine)
            seen.append(outbox.overview(engine))
            return super().send(batch)

    publish(engine, "a1")
    Relay(engine, Looking(), name="one").run_once()
    running, lost = seen
    assert (running.no_relay_since, running.unowned, running.relays[0].name) == (None, 0, "one")
    assert lost.unowned == 64
    assert lost.no_relay_since == pytest.approx(
        lost.database.now - timedelta(days=1), abs=timedelta(minutes=5)
    )
    ended = outbox.overview(engine)
    assert ended.no_relay_since is not None
    assert timedelta() <= ended.database.now - ended.no_relay_since < timedelta(minutes=5)


@on(*WITH_WRITERS)
def test_who_holds_the_oldest_snapshot(migrated: Database, engine: Engine) -> None:
    """The session is named; the database's name has no password. A role that may not see others is told
    which right it needs."""
    with migrated.engine(isolation_level="REPEATABLE READ").connect() as other:
        other.execute(text("SELECT count(*) FROM outbox_message"))
        found = outbox.overview(engine).database
        assert found.oldest_snapshot is not None
        assert found.oldest_snapshot.holder.startswith("session ")
        assert found.oldest_snapshot.since is not None
        assert found.long_snapshot is None
        in_a_minute = replace(found, now=found.oldest_snapshot.since + timedelta(seconds=61))
        assert in_a_minute.long_snapshot == found.oldest_snapshot
        assert found.now - found.oldest_snapshot.since < timedelta(minutes=5)
        assert found.unseen is None
    password = migrated.url.password
    assert migrated.url.database is not None
    assert migrated.url.database in str(found.place)
    assert password is None or password not in str(found.place)


def test_tables_on_disk(engine: Engine) -> None:
    """It lists the outbox's tables; their sizes are part of the whole."""
    found = outbox.overview(engine).database
    assert {each.name for each in found.tables} == {*OUTBOX}
    assert found.bytes > 0
    if engine.dialect.name == "sqlite":
        assert {each.bytes for each in found.tables} == {None}
    else:
        assert found.bytes == sum(each.bytes or 0 for each in found.tables)


@pytest.mark.long
@on("postgresql", "mariadb")
def test_a_million_messages(engine: Engine) -> None:
    """It reads some ten thousand rows of a million, by indexes; each number says how precise it is."""
    fill_outbox(engine, MILLION)
    with recorded(engine) as statements:
        found = outbox.overview(engine)
    assert found.pending.precision == "estimate"
    assert 0.8 * MILLION < found.pending.number < 1.2 * MILLION
    assert found.dead == Count(10_000, "at least")
    assert len(found.topics) == TOPICS
    assert {each.error for each in found.topics} == {"no answer"}
    if engine.dialect.name == "postgresql":
        assert found.unknown == Count(len(range(7, MILLION, FAILED)))
        read = [scan for each in statements for scan in scans(engine, *each)]
        assert not [scan for scan in read if scan[0] == "Seq Scan" and scan[2] > 10_000]
        assert sum(rows for _, _, rows, _ in read) < 60_000
    else:
        assert found.unknown.precision == "at least"
        assert rows_read(engine, outbox.overview) < 60_000


@on("sqlite")
def test_bad_arguments(database: Database) -> None:
    """Not an Engine, or a database without the tables."""
    with pytest.raises(InvalidOption, match="engine=str"):
        outbox.overview("postgresql://")  # type: ignore[arg-type]
    with pytest.raises(TablesMissing):
        outbox.overview(database.engine())
