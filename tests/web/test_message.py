"""The way of one message on the page."""

import logging

import pytest
from sqlalchemy import Engine, select, text

import inbox
import outbox
from inbox import Inbox, SqlStore, StatusInbox
from inbox.schema import tables
from inbox_outbox_base.databases import looking
from outbox import Refused, Relay, Unavailable
from tests.outbox.test_tracing import SESSION, soon, waiting
from tests.support.browsing import Visit, seen
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import Recorder, publish, relay
from tests.web.test_deciding import die
from tests.web.test_pages import PAGES, fill


def halt(engine: Engine, key: str) -> None:
    """A message whose step has an unknown outcome."""

    def charge() -> None:
        raise TimeoutError("no answer")

    payments = StatusInbox("payments", store=SqlStore(engine), keep_payload=True)
    with pytest.raises(TimeoutError), payments.claim(key, payload=b"<b>visa</b>") as claim:
        claim.step("charge", charge, on_unknown="halt")


def test_the_way_of_a_message(migrated: Database) -> None:
    """On each database: found by key and by id, it says why it waits, and behind which message; when it was
    sent, and who has taken it; or that nothing is known."""
    engine = migrated.engine()
    first, second = publish(engine, "a1", "a2", topic="mail")
    relay(engine, Recorder({"a1": [Unavailable("the queue is full", 3_600.0)]}))
    (sent,) = publish(engine, "b1", topic="sms")
    Relay(engine, Recorder(), keep_sent=60).run_once()
    with engine.begin() as connection:
        Inbox("billing").accept(connection, "b", payload=b"b1")
    halt(engine, "b")
    ann = Visit(engine)
    by_key, by_id = ann.see("/message", q="a"), ann.see("/message", q=second)
    assert by_key.index(first) < by_key.index(second)
    assert "the queue is full" in by_key
    assert "No relay is running." in by_id or f"It is behind message {first} of its key: it was not" in by_id
    taken = ann.see("/message", q="b")
    assert f"{sent} sms" in taken
    assert "Taken Consumer Key Taken Digest Result billing b " in taken
    assert "It waits for somebody to say what came of step charge." in taken
    assert "taken" not in ann.see("/message", q="nobody").lower()
    assert "Nothing is known of this key or id" in ann.see("/message", q="nobody")
    assert "Nothing is known" in ann.see("/message", q="x" * 600)


def test_invalid_times(engine: Engine) -> None:
    """Rows whose times somebody has damaged are shown like the others."""
    fill(engine)
    with engine.begin() as connection:
        for change in (
            "UPDATE outbox_dead SET created_at = '-infinity', dead_at = 'infinity'",
            "UPDATE outbox_message SET created_at = 'infinity', retry_at = 'infinity'",
            "UPDATE outbox_pause SET paused_at = 'infinity'",
        ):
            connection.execute(text(change))
    ann = Visit(engine)
    for path in (*PAGES, "/message?q=a", "/message?q=b", "/message?q=c"):
        found = ann.get(path)
        assert found.status_code == 200, path
        assert "Not seen" not in found.text, path


def test_payloads_are_hidden(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Only their sizes are shown; to a user who may, on request, what `show` makes of them, and the log says
    who looked."""
    halt(engine, "b")
    (sent,) = publish(engine, "-visa", topic="mail", headers={"card": "debit"})
    shown: list[tuple[str, str]] = []

    def show(user: str, of: str, payload: bytes) -> str:
        shown.append((user, of))
        return payload.decode()

    hidden = {"user": "ann", "show": show}, {"user": "bob", "allow": ("show",)}
    for options in hidden:
        eve = Visit(engine, **options)
        for sought in ("b", sent):
            page = eve.get("/message", params={"q": sought, "payload": "1"})
            assert not [each for each in ("visa", "debit") if each in seen(page)]
    bob = Visit(engine, user="bob", allow=("show",), show=show)
    page = bob.get("/message?q=b")
    assert "visa" not in page.text
    assert "11 B" in seen(page)
    with caplog.at_level(logging.INFO, "inbox.web"):
        page = bob.get("/message?q=b&payload=1")
    assert "&lt;b&gt;visa&lt;/b&gt;" in page.text
    assert shown == [("bob", "payments")]
    assert "bob looks at the payload of 'b' of consumer 'payments'" in caplog.text
    assert "headers: card debit -visa" in bob.see("/message", q=sent, payload="1")
    assert shown[1:] == [("bob", "mail")]


def test_decisions_about_one_message(engine: Engine) -> None:
    """It is retried, dropped, resolved, discarded or released, as it was shown."""
    die(engine, "a1")
    halt(engine, " b")  # with a blank
    ann = Visit(engine, allow=("retry", "drop", "resolve", "discard", "release"))
    page = ann.get("/message?q=a").text
    done = ann.submit(page, "retry", why="there is room")
    assert "1 message was retried." in seen(ann.get(done.headers["location"]))
    done = ann.submit(page, "retry")
    assert "1 had changed since it was shown" in seen(ann.get(done.headers["location"]))
    (decision,) = outbox.decisions(engine)
    assert decision.filter == {"topic": "mail", "key": "a", "seen": 1, "state": "dead"}
    page = ann.get("/message?q=+b").text
    assert seen(ann.submit(page, "discard")).startswith("Discard 1 message?")
    done = ann.submit(page, "resolve", outcome="done", result="[1]")
    resolved = seen(ann.get(done.headers["location"]))
    assert "1 message was resolved." in resolved
    assert "inbox-outbox redrive DEAD_LETTERS --broker URL --retried payments --url URL" in resolved
    (record,) = inbox.list_messages(SqlStore(engine))
    assert record.status == "failed"
    assert '"result":[1]' in (record.steps or "")
    refused = ann.submit(page, "resolve", outcome="not_done")
    assert refused.status_code == 409
    assert "this needs halted" in seen(refused)
    done = ann.submit(ann.get("/message?q=+b").text, "retry")
    assert "1 message was retried." in seen(ann.get(done.headers["location"]))


def test_a_handler_loses_its_message(engine: Engine) -> None:
    """What is consuming can be released."""
    store = SqlStore(engine)
    ann = Visit(engine, allow=("release",))

    def release() -> None:
        page = ann.get("/message?q=x")
        assert "has it, for another" in seen(page)
        sure = ann.submit(page.text, "release")
        assert "which may still be running" in seen(sure)
        ann.submit(sure.text, "release")

    with pytest.raises(inbox.errors.LeaseLost), StatusInbox("orders", store=store).claim("x"):
        release()
    assert [each.status for each in inbox.list_messages(store)] == ["failed"]


@on("postgresql", "mariadb", "mysql")
def test_a_record_is_locked(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page names the session that has locked a message of status-table mode."""
    monkeypatch.setattr(looking, "MOMENT", 0.0)
    engine, ann = migrated.engine(), Visit(migrated.engine())
    halt(engine, "b")
    with engine.connect() as holder:
        session = holder.execute(text(SESSION[engine.dialect.name])).scalar_one()
        holder.execute(select(tables().status).with_for_update())
        with waiting(migrated, tables().status, session):
            said = f"Its row is locked by session {session} ("
            (page,) = soon(lambda: [ann.see("/message", q="b")], said)
            holder.rollback()
    assert said in page


def test_refused_at_once_by_another_operator(engine: Engine) -> None:
    """A message that died again is not the one that was shown."""
    die(engine, "a1")
    ann = Visit(engine, allow=("drop",))
    sure = ann.submit(ann.get("/message?q=a").text, "drop")
    assert outbox.retry_all(engine, "dead") == 1
    relay(engine, Recorder({"a1": [Refused("again")]}))
    done = ann.submit(sure.text, "drop")
    assert "0 messages were dropped. 1 had changed" in seen(ann.get(done.headers["location"]))
