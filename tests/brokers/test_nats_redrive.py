"""Dead letters of a NATS consumer go back to the subject from which they came."""

import json
from typing import Any

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery, Outcome, Verdict
from inbox._consuming.nats.delivery import OURS, delivery_of
from inbox.errors import GiveUp, InvalidOption
from inbox.nats import NatsConsumer, Redriven, redrive
from inbox_outbox_base.words.outgoing import ACCEPTED
from outbox.nats import NatsPublisher
from tests.support.answers import published
from tests.support.brokers.consumers import running
from tests.support.brokers.nats_streams import NatsStreams, envelope
from tests.support.cli import inbox_outbox
from tests.support.processes import wait_until

pytest_plugins = ["tests.support.brokers.nats_fixtures"]


def buried(nats: NatsStreams) -> tuple[str, str, list[Delivery]]:
    """A stream and one of dead letters, with three letters in it; and what they were."""
    stream, dead, seen = nats.new(), nats.new(), list[Delivery]()

    def give_up(message: Delivery) -> Outcome:
        seen.append(message)
        return Outcome(Verdict.DEAD, error=GiveUp("no way"))

    publisher = NatsPublisher(nats.url)
    assert published(publisher, [envelope(stream, b"\0", "k", a="é")]) == [ACCEPTED]
    publisher.close()
    nats.put(stream, b"2", {"colour": "blé", "Nats-Msg-Id": "mine"})
    nats.put(stream, b"")
    one = NatsConsumer(nats.url, stream, give_up, durable="test", dead_letter=dead, key=lambda _: "one")
    with running(one):
        wait_until(lambda: nats.left(stream, "test") == 0 and len(seen) == 3)
    return stream, dead, seen


def test_letters_go_back(nats: NatsStreams) -> None:
    """They are handled as they were first, from the first attempt on, and leave the stream of dead letters;
    those that are not chosen stay."""
    stream, dead, seen = buried(nats)
    assert redrive(nats.url, dead, dry_run=True) == Redriven(3, 0)
    assert redrive(nats.url, dead, only=lambda message: message.id == "mine") == Redriven(1, 2)
    assert redrive(nats.url, dead, limit=1) == Redriven(1, 0)
    assert (nats.count(stream), nats.count(dead)) == (5, 1)
    assert redrive(nats.url, dead) == Redriven(1, 0)
    assert redrive(nats.url, dead) == Redriven(0, 0)
    assert (nats.count(stream), nats.count(dead)) == (6, 0)
    letters = nats.taken(stream, 6)[3:]
    for letter, first in zip(letters, (seen[1], seen[0], seen[2]), strict=True):
        again = delivery_of(letter, 1)
        for name in ("id", "topic", "key", "payload", "content_type", "headers", "created_at"):
            assert getattr(again, name) == getattr(first, name), name
        assert "reason" not in json.loads((letter.headers or {}).get(OURS, "{}"))


def test_the_command(nats: NatsStreams) -> None:
    """`inbox-outbox redrive` does the same, into another subject, too, and prints no password."""
    _, dead, _ = buried(nats)
    other = nats.new()
    url = nats.url.replace("://", "://me:s3cr3t@")
    done = inbox_outbox("redrive", dead, "--broker", url, "--into", other, "--key", "k", "--json", url=None)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"moved": 1, "left": 2, "failed": 0}
    assert "s3cr3t" not in done.stdout + done.stderr
    assert (nats.count(other), nats.count(dead)) == (1, 2)


def test_what_cannot_go_back(nats: NatsStreams) -> None:
    """The option is named, and nothing is lost."""
    stream, dead, _ = buried(nats)
    plain = nats.new()
    nats.put(plain)
    nats.delete(stream)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("missing", {}, "^dead_letters='missing': there is no such stream"),
        (dead, {"to": "missing"}, "^to='missing': no stream"),
        (dead, {"to": dead}, f"^to='{dead}': the stream of the dead letters"),
        (dead, {"to": "a.*"}, r"^to='a\.\*'"),
        (dead, {"only": 5}, "^only=5"),
        (dead, {}, f"^to=None: {dead}, sequence 1 names '{stream}': no stream"),
        (plain, {}, f"^to=None: {plain}, sequence 1 names no subject"),
    ]
    for letters, options, why in cases:
        with pytest.raises(InvalidOption, match=why):
            redrive(nats.url, letters, **options)
    assert (nats.count(dead), nats.count(plain)) == (3, 1)
    with pytest.raises(ConnectionError, match="0 messages were moved before"):
        redrive(f"nats://me:secret@127.0.0.1:{free_port()}", dead)
