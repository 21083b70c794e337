"""Retry and deliver: a message that may run again is published again, in the same transaction."""

import json
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import pytest
import redis
from sqlalchemy import Connection, Engine, text

import inbox
import outbox
from inbox import Backoff, Claim, Delivery, RedisStore, SqlStore, Status, StatusInbox, message_id
from inbox._operating.delivering import Redelivery
from inbox.errors import GiveUp, InvalidOption, TablesMissing, WrongStatus
from inbox.schema import metadata_for
from inbox_outbox_base.words.redelivered import AGAIN, CREATED_AT, KNOWN_AS
from outbox import DirectDelivery, Envelope, Message, Outbox
from outbox._operating.redelivering import RedeliveringOutbox
from outbox.errors import WrongState
from tests.support.cli import as_json, in_this_process, succeeded
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import Recorder, relay
from tests.support.status_mode.stores import stored

Handled = list[Envelope | Delivery]


class Handling:
    """A handler of status-table mode that fails until it is mended."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.is_mended = False
        self.handled: Handled = []
        self.store = SqlStore(engine)
        given: dict[str, Any] = {
            "lease": 60,
            "backoff": Backoff(0),
            "max_attempts": 1,
            "keep_payload": True,
        } | options
        status_inbox = StatusInbox("billing", store=self.store, **given)

        @status_inbox.handler(
            key=message_id, payload=lambda message: message.payload, message_time=attrgetter("created_at")
        )
        def handle(_: Claim, message: Any) -> None:
            self.handled.append(message)
            if not self.is_mended:
                raise ValueError("no such article 7")

        self.handle = handle

    def kill(self, *messages: Delivery | Envelope) -> None:
        """Let these die."""
        for message in messages:
            assert self.handle.outcome(message).error is not None


def delivery(id: str = "a", **parts: Any) -> Delivery:  # noqa: A002 - what it is
    """A message of a broker."""
    given: dict[str, Any] = {
        "topic": "orders",
        "key": "k",
        "payload": b"1",
        "content_type": "text/plain",
        "headers": {},
    }
    return Delivery(id=id, attempt=3, **given | parts)


def waiting(engine: Engine) -> list[outbox.StoredMessage]:
    """What waits in the outbox."""
    return [*outbox.peek(engine)]


def test_what_died_runs_again(migrated: Database) -> None:
    """What died is published again in the decision's transaction, in the order in which it died. To its inbox
    it is the same message, with its id, key, payload and headers; to a broker it is another one. The decision
    is stored, and an audit counts the message once."""
    engine, broker, elsewhere = migrated.engine(), Recorder(), Recorder()
    billing = Handling(engine)
    sent = [
        Message("orders", "1", key="order-1", headers={"tenant": "é"}),
        Message("orders", b"\x00\xff"),
        Message("orders", None, key="order-3"),
    ]
    with engine.begin() as connection:
        first, *others = Outbox().publish_many(connection, sent)
    relay(engine, broker, keep_sent=60)
    billing.kill(*broker.sent)
    dead = inbox.list_messages(billing.store, status="dead")
    billing.is_mended = True

    asked: Any = {"seen": dead.seen, "deliver": True, "to": "other"}
    assert (inbox.retry_all(billing.store, "dead", dry_run=True, **asked), waiting(engine)) == (3, [])
    inbox.retry(billing.store, "billing", first, deliver=True, by="ann")
    answer = inbox.retry_all(billing.store, "dead", **asked, by="ann")
    assert (answer, answer.changed, answer.left) == (2, 1, 0)
    bulk, single = inbox.decisions(engine)
    assert single.filter == {"consumer": "billing", "key": first, "status": "dead", "deliver": True}
    assert bulk.filter == {"status": "dead", "seen": 3, "deliver": True, "to": "other"}

    direct = DirectDelivery({"orders": billing.handle})
    relay(engine, outbox.Router({"orders": direct, "other": elsewhere}), keep_sent=60)
    assert billing.handled[3:] == broker.sent[:1]
    assert stored(billing.store, first, "billing").status is Status.CONSUMED
    assert [(each.payload, each.key) for each in elsewhere.sent] == [(b"\x00\xff", None), (None, "order-3")]
    assert [each.headers for each in elsewhere.sent] == [
        {KNOWN_AS: each.id, CREATED_AT: each.created_at.isoformat()} for each in broker.sent[1:]
    ]
    assert all(each.id.startswith(AGAIN) for each in elsewhere.sent)
    found = outbox.audit(engine, "orders", "billing", key="id", grace=0)
    assert {each.id for each in found.missing} == {*others}


@on("sqlite")
def test_only_what_was_retried_is_delivered(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """If somebody else is faster, nothing is published; if nothing can be published, nothing is retried."""
    engine = migrated.engine()
    billing = Handling(engine)
    billing.kill(delivery("a"), delivery("b"))
    check = Redelivery.check

    def slow(self: Redelivery, record: inbox.Record) -> None:
        check(self, record)
        inbox.discard(billing.store, "billing", record.key)

    monkeypatch.setattr(Redelivery, "check", slow)
    with pytest.raises(WrongStatus):
        inbox.retry(billing.store, "billing", "a", deliver=True)
    answer = inbox.retry_all(billing.store, "dead", deliver=True)
    assert (answer, answer.changed, waiting(engine)) == (0, 1, [])
    monkeypatch.undo()

    # What a later delivery brings replaces all that was kept.
    billing.kill(delivery("d", payload=b"1", headers={"n": "1"}))
    inbox.retry(billing.store, "billing", "d")
    billing.kill(delivery("d", payload=None))
    inbox.retry(billing.store, "billing", "d", deliver=True)
    assert [(each.content_type, each.headers) for each in waiting(engine)] == [("", {KNOWN_AS: "d"})]

    billing.kill(delivery("c"))
    monkeypatch.setattr(RedeliveringOutbox, "redeliver", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        inbox.retry(billing.store, "billing", "c", deliver=True)
    assert stored(billing.store, "c", "billing").status is Status.DEAD


@on("sqlite", "postgresql", "mariadb", "mysql")
@pytest.mark.parametrize("after_dead", ["hold", "continue"])
def test_what_was_delivered_directly(migrated: Database, after_dead: Any) -> None:
    """A message that is still in the outbox, held or dead, is retried there: no second one waits behind it,
    and no dead letter stays. One that is published to another topic is another one."""
    engine = migrated.engine()
    billing = Handling(engine)
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message("orders", b"1", key="k", id=each) for each in "ab"])
    direct = DirectDelivery({"orders": billing.handle})
    for _ in range(2 if after_dead == "hold" else 1):
        relay(engine, direct, after_dead=after_dead)
    if after_dead == "hold":
        assert [(each.id, each.state) for each in waiting(engine)] == [("a", "held"), ("b", "pending")]
    billing.kill(delivery("c"))
    billing.is_mended = True
    died = len(inbox.list_messages(billing.store, status="dead"))
    assert inbox.retry_all(billing.store, "dead", deliver=True) == died
    assert {each.id[:12] for each in waiting(engine)} == {"a", "b", AGAIN}
    assert "held" not in {each.state for each in waiting(engine)}
    relay(engine, direct, after_dead=after_dead)
    assert waiting(engine) == []
    assert {each.id for each in billing.handled[died:]} == {"a", "b", "c"}


@on("sqlite")
def test_somebody_decides_in_the_outbox_meanwhile(
    migrated: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bulk decision leaves that message, counts it, and goes on."""
    billing = Handling(migrated.engine())
    billing.kill(delivery("a"), delivery("b"))
    redeliver = RedeliveringOutbox.redeliver

    def meet(box: RedeliveringOutbox, connection: Connection, messages: Any) -> None:
        if "a" in [first_id for _, first_id, _ in messages]:
            raise WrongState("message 'a' is pending by now")
        redeliver(box, connection, messages)

    monkeypatch.setattr(RedeliveringOutbox, "redeliver", meet)
    result = inbox.retry_all(billing.store, "dead", deliver=True)
    assert (result, result.changed) == (1, 1)
    assert [each.key for each in inbox.list_messages(billing.store, status="dead")] == ["a"]


@on("sqlite")
def test_what_is_old_stays_old(migrated: Database) -> None:
    """A message that is delivered again has the time that it had at first: another consumer that has purged
    it does not take it again, and the one in which it died runs it, because its record is there."""
    engine, effects = migrated.engine(), list[str]()
    billing, stock = Handling(engine), inbox.Inbox("stock", on_refusal="return")

    @stock.handler(engine, key=message_id, message_time=attrgetter("created_at"))
    def take(_: Connection, message: Any) -> None:
        effects.append(message.id)

    now = datetime.now(UTC)
    billing.kill(delivery("a", created_at=now))
    times = {"now": now.isoformat(), "old": (now - timedelta(days=8)).isoformat()}
    with engine.begin() as connection:
        connection.execute(text("UPDATE inbox_status SET delivery = replace(delivery, :now, :old)"), times)
    billing.is_mended = True
    inbox.retry(billing.store, "billing", "a", deliver=True)
    inbox.retry(billing.store, "billing", "a", deliver=True, to="stock")
    direct = DirectDelivery({"orders": billing.handle, "stock": take})
    relay(engine, direct)
    assert [each.created_at for each in billing.handled[1:]] == [now - timedelta(days=8)]
    assert effects == []


@on("sqlite")
def test_what_cannot_be_delivered(migrated: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A message that is not kept, or that the outbox cannot take, is refused by name, and nothing is changed;
    many at once leave it, count it and log it."""
    engine = migrated.engine()
    billing, status_inbox = Handling(engine), StatusInbox("alone", store=SqlStore(engine), keep_payload=True)
    large = delivery("large", payload=b"x" * 1_000_000)
    billing.kill(delivery("no topic", topic=""), delivery("odd", headers={"outbox-x": "1"}), large)
    assert "message large: of its 1,000," in caplog.text
    Handling(engine, keep_payload=False).kill(delivery("unkept"))
    with pytest.raises(GiveUp), status_inbox.claim("claimed", b"1"):
        raise GiveUp
    store, expected = billing.store, "deliver=True: consumer='billing', key="
    for consumer, key, reason in (
        ("billing", "unkept", f"{expected}'unkept': the record does not keep the message"),
        ("billing", "large", f"{expected}'large': the record does not keep the message"),
        ("alone", "claimed", "key='claimed': the record does not keep the message"),
        ("billing", "no topic", f"{expected}'no topic': the outbox cannot take the message: topic=''"),
        ("billing", "odd", f"{expected}'odd': the outbox cannot take the message: headers"),
    ):
        with pytest.raises(InvalidOption, match=reason):
            inbox.retry(store, consumer, key, deliver=True)
    billing.kill(delivery("good"))
    for dry_run in (True, False):
        answer = inbox.retry_all(store, "dead", deliver=True, dry_run=dry_run)
        assert (answer, answer.changed, answer.left) == (1, 0, 5)
    assert "left as it is: deliver=True: consumer='billing', key='odd'" in caplog.text
    assert [each.key for each in inbox.list_messages(store, status="failed")] == ["good"]
    url = engine.url.render_as_string(hide_password=False)
    many = "inbox", "retry", "--all", "dead", "--deliver"
    done = in_this_process(*many, "--json", url=url)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"messages": 0, "left": 5})
    done = in_this_process(*many, "--to", "orders", "--error", "article", url=url)
    assert done.stdout == (
        "1 message was dead and is retried; 3 cannot be delivered, and are left: the log names them\n"
    )
    assert [(each.topic, each.key) for each in waiting(engine)] == [("orders", "k")] * 2
    succeeded(in_this_process("inbox", "retry", "billing", "no topic", "--deliver", "--to", "x", url=url))
    shown = as_json(in_this_process("inbox", "show", "billing", "no topic", "--json", url=url))
    assert shown["delivery"] == {"topic": "", "id": "no topic", "key": "k"}
    assert [each.topic for each in waiting(engine)] == ["orders", "orders", "x"]


@on("sqlite")
def test_where_there_is_no_outbox(database: Database) -> None:
    """A store without an outbox is refused by name, and so are options without a meaning."""
    engine = database.engine()
    metadata_for("status").create_all(engine)
    billing = Handling(engine)
    billing.kill(delivery())
    for store, options, error, reason in (
        (billing.store, {"deliver": True}, TablesMissing, "outbox_message"),
        (RedisStore(redis.Redis()), {"deliver": True}, InvalidOption, "deliver=True: store=RedisStore"),
        (billing.store, {"to": "orders"}, InvalidOption, "to='orders': expected only with deliver=True"),
        (billing.store, {"deliver": True, "to": ""}, InvalidOption, "to='': "),
        (billing.store, {"deliver": 1}, InvalidOption, "deliver=1: "),
    ):
        given: dict[str, Any] = options
        with pytest.raises(error, match=reason):
            inbox.retry(store, "billing", "a", **given)
        with pytest.raises(error, match=reason):
            inbox.retry_all(store, "dead", **given)
    assert stored(billing.store, "a", "billing").status is Status.DEAD
