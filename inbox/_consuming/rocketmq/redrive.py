"""Move dead letters back to a topic."""

import asyncio
import logging
from secrets import token_hex
from typing import Any

from inbox._consuming.redriving import LetterChoice, check_no_loop, check_places
from inbox_outbox_base.brokers.rocketmq import forking
from inbox_outbox_base.brokers.rocketmq.client import grpc, protocol, text_of
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.redriven import Only, Redriven

with brought_by("rocketmq"):
    from . import options, proxies
    from .dead_letters import copy_of, moved_back
    from .delivery import LOOKED_AT, delivery_of, is_damaged
    from .link import Calls, Membership, RocketMQLink
    from .proxy import FAILURES

_MOST = 32
"""The most letters in one answer of RocketMQ."""
_HIDDEN = 60
"""Seconds for which nobody else in the group gets a letter that was received."""
_log = logging.getLogger("inbox.rocketmq")


def redrive(
    url: str,
    dead_letters: str,
    *,
    group: str,
    to: str | None = None,
    only: Only | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> Redriven:
    """Move dead letters back to the topic from which they came, to be handled again.

    A letter leaves the dead letters after RocketMQ has confirmed it in its topic, so none is lost; if the
    call is killed in between, the message is in both, and its inbox takes it once. It keeps its id, its key
    and its time, and has all its attempts again. It arrives behind the messages that wait.

    A letter that stays is written anew at the end of the dead letters. Each is looked at once, also those
    that come while the call runs; one that was moved and dies again meanwhile stays. A damaged letter is
    counted and named in the log: RocketMQ does not take it again.

    RocketMQ remembers for each group what it has had of a topic. A group that is new may get only the last
    letter: make it, and let it begin at the first letter (`mqadmin resetOffsetByTime`).

    Args:
        url: the proxy's: rocketmq://access-key:secret@host:port, or rocketmqs://.
        dead_letters: the topic with the dead letters, such as "orders-dead" or "%DLQ%billing".
        group: a consumer group for this alone; it must exist.
        to: the topic to which they go; by default each goes to the one that it names. Those in a group's own
            topic, "%DLQ%<group>", name none.
        only: a function of a `Delivery`: whether this message goes back; None: all.
        limit: move at most this many; None: all.
        dry_run: move nothing, and count what would be moved.

    Returns:
        How many were moved, how many of those that were looked at were left, and how many are damaged.

    Raises:
        InvalidOption: an argument cannot be used: for example, a topic or the group does not exist, or a
            letter names no topic, and `to` is None.
        ConnectionError: RocketMQ does not answer, or takes no message; what was moved before stays moved.
        InboxError: the process was forked while its parent was connected to RocketMQ.
        RuntimeError: called in an event loop; use `asyncio.to_thread`.
    """
    check_places("topic", dead_letters, to)
    if to == dead_letters:
        raise InvalidOption(f"to={to!r}: expected another topic than that of the dead letters")
    member = options.member(url, group, options.name("dead_letters", dead_letters), "*")
    target = None if to is None else options.name("to", to)
    choice = LetterChoice(only, limit)
    check_no_loop()
    forking.check()
    try:
        asyncio.run(_LetterMover(member, dead_letters, target, choice, dry_run).run())
    except FAILURES as error:
        raise ConnectionError(
            f"{member.address}: {text_of(error)}; {choice.moved} messages were moved before"
        ) from error
    return choice.result()


class _LetterMover:
    """One call."""

    def __init__(
        self, member: Membership, dead_letters: str, target: str | None, choice: LetterChoice, dry_run: bool
    ) -> None:
        self._member = member
        self._dead_letters, self._target = dead_letters, target
        self._choice, self._dry_run = choice, dry_run
        self._mark = token_hex(8)
        self._seen: set[str] = set()
        """The ids of what was moved."""
        self._is_fifo: dict[str, bool] = {}

    async def run(self) -> None:
        """Look at the letters of all brokers."""
        self._calls = Calls(self._member)
        try:
            if self._target is not None:
                await self._takes_groups("to", self._target)
            queues = await proxies.route_of(self._calls, "dead_letters", self._dead_letters)
            if not queues:
                raise InvalidOption(f"dead_letters={self._dead_letters!r}: no broker permits reading it")
            for queue in {each.broker.name: each for each in queues}.values():  # each stands for its broker's
                await self._move_all(queue)
        finally:
            await self._calls.disconnect()

    async def _move_all(self, queue: Any) -> None:
        link = RocketMQLink(self._member, queue.broker.endpoints)
        try:
            await self._open(link)
            while not self._choice.is_full:
                letters: list[Any] = []
                await link.receive(queue, self._choice.room(_MOST), _HIDDEN, letters)
                await self._take_all(link, [each for each in letters if not is_damaged(each)])
                for letter in filter(is_damaged, letters):
                    self._fail(letter)
                if all(map(self._is_known, letters)):
                    return
        finally:
            await link.close()

    async def _open(self, link: RocketMQLink) -> None:
        try:
            await link.open()
        except grpc.RpcError as error:
            if error.code() in proxies.GROUP:
                raise InvalidOption(f"group={self._member.group!r}: {text_of(error)}") from None
            raise

    async def _take_all(self, link: RocketMQLink, letters: list[Any]) -> None:
        for number, letter in enumerate(letters):
            try:
                await self._take(letter)
            except FAILURES:
                raise
            except Exception:
                # Otherwise the next call would have to wait for those that are hidden now.
                for each in letters[number:]:
                    await self._leave(each)
                    await link.acknowledge(each)
                raise
            await link.acknowledge(letter)

    async def _take(self, letter: Any) -> None:
        delivery, is_again = delivery_of(letter, 1), self._is_known(letter)
        is_wanted = not is_again and delivery.id not in self._seen and self._choice.wants(delivery)
        if is_wanted:
            topic = self._target or delivery.topic
            if topic == self._dead_letters:
                raise InvalidOption(f"to=None: {delivery.place} names no topic to which it could go back")
            self._seen.add(delivery.id)
            if not self._dry_run:
                is_fifo = await self._takes_groups("to", topic)
                await self._calls.send(moved_back(delivery, topic, is_fifo=is_fifo))
            self._choice.moved += 1
        elif not is_again:
            self._choice.left += 1
        if not is_wanted or self._dry_run:
            await self._leave(letter)

    def _is_known(self, letter: Any) -> bool:
        """Whether this call has written it anew, or cannot."""
        return letter.user_properties.get(LOOKED_AT) == self._mark or is_damaged(letter)

    def _fail(self, letter: Any) -> None:
        self._choice.failed += 1
        delivery = delivery_of(letter, 1)
        _log.warning("%s, id %s: cannot be moved back: it is damaged", delivery.place, delivery.id)

    async def _leave(self, letter: Any) -> None:
        """Write a letter anew: RocketMQ buries one that it has got back too often."""
        copy = copy_of(letter, self._dead_letters)
        copy.user_properties[LOOKED_AT] = self._mark
        await self._calls.send(copy)

    async def _takes_groups(self, option: str, topic: str) -> bool:
        """Whether a topic's messages belong to message groups."""
        if topic not in self._is_fifo:
            queues = await proxies.route_of(self._calls, option, topic)
            kinds = {kind for queue in queues for kind in queue.accept_message_types}
            self._is_fifo[topic] = protocol.MessageType.FIFO in kinds
        return self._is_fifo[topic]
