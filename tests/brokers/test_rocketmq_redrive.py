"""Dead letters of RocketMQ that are moved back."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from inbox import Delivery, Outcome, Verdict
from inbox.errors import InvalidOption
from inbox.rocketmq import Redriven, redrive
from inbox_outbox_base.brokers.rocketmq.message import message_of
from tests.support.brokers.rocketmq_consumers import consuming, send, send_raw, url_of
from tests.support.brokers.rocketmq_topics import Topics, envelope
from tests.support.cli import error, in_this_process, succeeded
from tests.support.processes import wait_until

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]

REFUSED = Outcome(Verdict.MISMATCH)


def foreign(topic: str, key: str) -> Any:
    """A message of another program, made long ago."""
    message = message_of(envelope(topic, "old", key), is_fifo=True)
    message.user_properties.clear()
    message.system_properties.born_timestamp.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    return message


def test_letters_go_back_to_their_topic(rocketmq: Topics) -> None:
    """From a topic of dead letters: each is the same message for its handler, with its id, key, time and
    headers, also one of another program; those that are not wanted stay, in their order."""
    topic, dead, group = rocketmq.new("FIFO"), rocketmq.new(), rocketmq.group(in_order=True)
    ours, seen, url = rocketmq.group(), list[Delivery](), url_of(rocketmq.address)
    batch = [envelope(topic, f"{number}", f"k{number}", note="é") for number in range(3)]
    send(rocketmq.address, batch, is_fifo=True)
    send_raw(rocketmq.address, [foreign(topic, "theirs")])

    def handle(message: Delivery) -> Outcome:
        seen.append(message)
        return REFUSED if len(seen) <= 4 else Outcome(Verdict.NEW)

    with consuming(rocketmq.address, topic, group, handle, dead_letter=dead):
        wait_until(lambda: len(rocketmq.stored(dead)) == 4)
        before = {each.id: each for each in seen}
        wanted = {batch[0].id, *(each.id for each in seen if each.key == "theirs")}
        for dry_run in (True, False):
            done = redrive(url, dead, group=ours, only=lambda each: each.id in wanted, dry_run=dry_run)
            assert done == Redriven(2, 2)
        wait_until(lambda: len(seen) == 6)
        assert redrive(url, dead, group=ours, limit=1) == Redriven(1, 0)
        assert redrive(url, dead, group=ours) == Redriven(1, 0)
        wait_until(lambda: len(seen) == 8)
    assert {each.id for each in seen[4:6]} == wanted
    for each in seen[4:]:
        changing: dict[str, Any] = {"raw": None, "place": None}
        assert replace(each, **changing) == replace(before[each.id], **changing)
    with pytest.raises(InvalidOption, match="group='none'"):
        redrive(url, dead, group="none")
    for options, reason in (
        ({"dead_letters": "nowhere"}, "dead_letters='nowhere': there is no such topic"),
        ({"dead_letters": dead, "to": "nowhere"}, "to='nowhere': there is no such topic"),
        ({"dead_letters": dead, "to": dead}, "expected another topic"),
        ({"dead_letters": None}, "dead_letters=None: expected the name of a topic"),
    ):
        given: Any = options
        with pytest.raises(InvalidOption, match=reason):
            redrive(url, group=ours, **given)
    command = "redrive", dead, "--broker", url
    told = succeeded(in_this_process(*command, "--group", ours, "--dry-run"))
    assert told == "0 dead letters would be moved back, 0 stay\n"
    assert "--group: expected a consumer group" in error(in_this_process(*command))
    on_kafka = in_this_process("redrive", dead, "--broker", "kafka://127.0.0.1:1", "--group", ours)
    assert "only with RocketMQ" in error(on_kafka)


def test_letters_of_a_group(rocketmq: Topics) -> None:
    """From a group's own dead letters, which name no topic. One that dies again at once stays, so that it
    does not go round in circles."""
    topic, group, ours = rocketmq.new(), rocketmq.group(), rocketmq.group()
    url, seen = url_of(rocketmq.address), list[Delivery]()

    def handle(message: Delivery) -> Outcome:
        seen.append(message)
        return REFUSED if message.payload == b"bad" else Outcome(Verdict.NEW)

    send(rocketmq.address, [envelope(topic, "bad", "k"), envelope(topic, "bad")])
    with consuming(rocketmq.address, topic, group, handle):
        wait_until(lambda: len(rocketmq.dead(group)) == 2)
        with pytest.raises(InvalidOption, match=r"to=None: .* names no topic"):
            redrive(url, f"%DLQ%{group}", group=ours)
        done = redrive(url, f"%DLQ%{group}", group=ours, to=topic)
        assert (done.moved, len({each.id for each in seen})) == (2, 2)
        wait_until(lambda: len(seen) == 4)
