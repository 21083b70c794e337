"""Decisions on the page."""

import re

import pytest
from sqlalchemy import Engine, insert, update

import inbox
import outbox
from inbox import Claim, Delivery, Inbox, SqlStore, StatusInbox, message_id
from inbox.schema import tables
from inbox_outbox import web
from outbox import Refused
from tests.support.browsing import Visit, seen
from tests.support.database import Database
from tests.support.outbox_publishers import Recorder, publish, relay

TABLES = tables()


def die(engine: Engine, *names: str, error: str = "mailbox 17 is full") -> None:
    """Publish messages that become dead letters."""
    publish(engine, *names, topic="mail")
    relay(engine, Recorder({name: [Refused(error)] for name in names}))


def group_of(ann: Visit, cause: str) -> str:
    """The page of the group with this cause."""
    stopped = ann.get("/stopped").text
    before = stopped.partition(f">{cause}</a>")[0]
    path = before.rpartition('href="')[2].rpartition('"')[0].replace("&amp;", "&")
    found = ann.get(path)
    assert found.status_code == 200, found.text
    return found.text


def test_causes(engine: Engine) -> None:
    """Errors that differ in numbers only are one cause; topics and states are apart, and a filter shows one
    topic or consumer."""
    die(engine, "a1", "b1", error="mailbox 17 is full")
    die(engine, "c1", error="mailbox 4 is full")
    die(engine, "d1", error="no such user")
    orders = StatusInbox("orders", store=SqlStore(engine), max_attempts=1)
    with pytest.raises(ValueError, match="no"), orders.claim("x"):
        raise ValueError("no")
    ann = Visit(engine)
    found = ann.see("/stopped")
    assert "3 mailbox # is full dead mail topic" in found
    assert "1 no such user dead mail topic" in found
    assert "1 ValueError: no dead orders consumer" in found
    assert "orders" not in ann.see("/stopped", topic="mail")
    assert "mailbox" not in ann.see("/stopped", consumer="orders")
    assert "Pending" not in found
    group = seen(ann.get("/stopped")) and group_of(ann, "mailbox # is full")
    assert "mailbox 4 is full" in group
    assert 'name="do"' not in group
    assert 'type="checkbox"' not in group


def test_what_is_ticked_is_retried(migrated: Database) -> None:
    """On each database: exactly that, in the user's name, with the reason; or all of a group, as shown."""
    engine = migrated.engine()
    die(engine, "a1", "b1", "c1")
    ann = Visit(engine, allow=("retry",))
    page = group_of(ann, "mailbox # is full")
    die(engine, "d1")  # nobody has seen it
    done = ann.submit(page, "retry", 2, why="there is room")
    assert done.status_code == 303
    after = seen(ann.get(done.headers["location"]))
    assert after.startswith("2 messages were retried.")
    (decision,) = outbox.decisions(engine)
    assert (decision.by, decision.action, decision.count, decision.why) == (
        "ann",
        "outbox.retry_all",
        2,
        "there is room",
    )
    again = ann.submit(page, "retry every")
    after = seen(ann.get(again.headers["location"]))
    assert after.startswith("1 message was retried. 2 had changed since they were shown, and were left.")
    assert len(outbox.peek(engine, state="dead")) == 1


def test_what_is_dropped_is_asked_twice(engine: Engine) -> None:
    """The first form names the messages and drops nothing; nor does the answer's address, loaded again."""
    die(engine, "a1", "b1")
    ann = Visit(engine, allow=("drop",))
    sure = ann.submit(group_of(ann, "mailbox # is full"), "drop every")
    assert sure.status_code == 200
    first, second = (each.id for each in outbox.peek(engine, state="dead"))
    assert seen(sure).startswith(f"Drop 2 messages? Of topic mail: {first}, {second}. They are deleted")
    assert ann.get("/decide").headers["location"] == "/"
    assert len(outbox.peek(engine, state="dead")) == 2
    done = ann.submit(sure.text, "drop every")
    assert "2 messages were dropped." in seen(ann.get(done.headers["location"]))
    assert not outbox.peek(engine, state="dead")


def test_dismissed(engine: Engine) -> None:
    """A mismatch that somebody has looked at is red no more; what was refused again since is left. A message
    that was given up and taken later is not red by itself."""
    mismatch = {"consumer": "billing", "verdict": "mismatch", "times": 1}
    refused = [mismatch | {"key": key} for key in ("a", "b", "c")]
    refused.append(mismatch | {"key": "d", "verdict": "dead"})
    with engine.begin() as connection:
        connection.execute(insert(TABLES.refused), refused)
        Inbox("billing").accept(connection, "d")
    ann = Visit(engine, allow=("dismiss",))
    assert "3 messages of keys that were taken with another payload were refused" in ann.see("/")
    assert "given up" not in ann.see("/")
    assert "taken since dead" in ann.see("/consumer", name="billing")
    page = ann.get("/consumer?name=billing").text
    with engine.begin() as connection:
        connection.execute(update(TABLES.refused).where(TABLES.refused.c.key == "c").values(times=2))
    ann.submit(page, "dismiss", 1, why="the shop was told")
    done = ann.submit(page, "dismiss every")
    after = seen(ann.get(done.headers["location"]))
    assert after.startswith("2 messages were dismissed. 2 had changed since they were shown, and were left.")
    assert "1 message of keys that were taken with another payload was refused" in ann.see("/")
    assert {each.action for each in inbox.decisions(engine)} == {"inbox.dismiss_all"}
    assert 'name="do"' not in Visit(engine).get("/consumer?name=billing").text
    row = {"consumer": "flights", "key": "a", "error": "too long", "content": "{}", "run": "r"}
    with engine.begin() as connection:
        connection.execute(insert(TABLES.rejected), row | {"batch": 0, "part": 0})
    said, bob = "1 row of bulk writers was refused by the target", Visit(engine, allow=("dismiss",))
    assert said in bob.see("/")
    bob.submit(bob.get("/consumer?name=flights").text, "dismiss", 1)
    assert said not in Visit(engine).see("/")


def test_status_table_mode(engine: Engine) -> None:
    """Dead messages are retried or discarded; of two operators one wins, and the other is told."""
    store = SqlStore(engine)
    orders = StatusInbox("orders", store=store, max_attempts=1)
    for key in ("x", "y"):
        with pytest.raises(ValueError, match="no"), orders.claim(key):
            raise ValueError("no")
    ann, bob = (Visit(engine, user=name, allow=("retry", "discard")) for name in ("ann", "bob"))
    of_ann, of_bob = (group_of(each, "ValueError: no") for each in (ann, bob))
    ann.submit(of_ann, "retry", 1)
    sure = bob.submit(of_bob, "discard every")
    done = bob.submit(sure.text, "discard every")
    assert "1 message was discarded. 1 had changed since it was shown, and was left." in seen(
        bob.get(done.headers["location"])
    )
    assert [each.status for each in inbox.list_messages(store)] == ["failed", "consumed"]
    assert {each.by for each in inbox.decisions(engine)} == {"ann", "bob"}


def test_a_topic_is_paused_and_resumed(engine: Engine) -> None:
    """The page says by whom and why, and offers the opposite."""
    publish(engine, "a1", topic="mail")
    ann = Visit(engine, allow=("pause", "resume"))
    done = ann.submit(ann.get("/topic?name=mail").text, "pause", of="mail", why="the printer burns")
    page = ann.get(done.headers["location"])
    assert re.search("It is paused since [0-9]+ s ago by ann: the printer burns", seen(page))
    assert re.search("mail paused since [0-9]+ s ago by ann: the printer burns", ann.see("/topics"))
    done = ann.submit(page.text, "resume", of="mail")
    assert outbox.pauses(engine) == []
    assert "It is resumed." in seen(ann.get(done.headers["location"]))
    done = ann.submit(page.text, "resume", of="mail")
    assert "It was not paused." in seen(ann.get(done.headers["location"]))
    done = ann.submit(ann.get("/topics").text, "pause")
    after = seen(ann.get(done.headers["location"]))
    assert re.search(r"All topics are paused since [0-9]+ s ago by ann\. No message leaves\.", after)
    assert [each.topic for each in outbox.pauses(engine)] == ["*"]


def test_what_is_not_allowed(engine: Engine) -> None:
    """Has no button, and a form that somebody has made gets 403: nothing is changed."""
    die(engine, "a1")
    ann = Visit(engine, allow=web.ACTIONS)
    page = group_of(ann, "mailbox # is full")
    bob = Visit(engine, user="bob", allow=("pause",))
    for do in ("retry", "retry every", "drop every"):
        assert bob.submit(page, do).status_code == 403
    assert ann.submit(page, "retry every", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert len(outbox.peek(engine, state="dead")) == 1
    assert outbox.decisions(engine) == []


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"do": "retry"}, 400, "nothing is ticked"),
        ({"do": "fly"}, 400, "nothing that can be done"),
        ({"do": "retry", "seen": "x"}, 400, "seen"),
        ({"do": "drop", "seen": "x"}, 400, "seen"),
        ({"do": "retry", "half": "inbox", "store": "7", "seen": "x"}, 400, "store=7"),
        (
            {"do": "resolve", "of": "orders", "key": "x", "step": "a", "outcome": "done"},
            404,
            "no message 'x'",
        ),
        (
            {"do": "resolve", "of": "orders", "key": "x", "outcome": "done", "result": "{"},
            400,
            "expected JSON",
        ),
        ({"do": "pause", "of": "orders.*"}, 400, "expected a whole topic"),
        ({"do": "pause", "of": "orders", "why": "x" * 1_001}, 400, "expected 1 to 1,000"),
    ],
)
def test_a_form_that_cannot_be_carried_out(
    engine: Engine, fields: dict[str, str], code: int, said: str
) -> None:
    """One clear sentence says why, and nothing is done."""
    ann = Visit(engine, allow=web.ACTIONS)
    found = ann.post(fields)
    assert found.status_code == code, found.text
    assert said in found.text.replace("&#39;", "'")
    assert outbox.decisions(engine) == []


def test_retry_and_deliver(engine: Engine) -> None:
    """A message that its record keeps can be retried and published again, in a group and alone, by those who
    may retry; of others the page says that they were left."""
    orders = StatusInbox("orders", store=SqlStore(engine), max_attempts=1, keep_payload=True)

    @orders.handler(key=message_id)
    def handle(_: Claim, message: Delivery) -> None:
        raise ValueError("no")

    for each in ("x", "y"):
        handle.outcome(Delivery(each, "orders", None, b"1", "text/plain", {}, 1))
    with pytest.raises(ValueError, match="no"), orders.claim("unkept", b"1"):
        raise ValueError("no")
    assert "Retry and deliver" not in group_of(Visit(engine, allow=("discard",)), "ValueError: no")
    ann = Visit(engine, allow=("retry",))
    alone = ann.get("/message?q=x").text
    assert "Came from topic" in alone
    done = ann.submit(alone, "deliver", why="mended")
    assert seen(ann.get(done.headers["location"])).startswith("1 message was retried, and published again.")
    done = ann.submit(group_of(ann, "ValueError: no"), "deliver every")
    assert seen(ann.get(done.headers["location"])).startswith(
        "1 message was retried, and published again. 1 cannot be published again, and was left"
    )
    assert [each.topic for each in outbox.peek(engine)] == ["orders", "orders"]
    assert [(each.by, each.filter["deliver"]) for each in inbox.decisions(engine)] == [("ann", True)] * 2
