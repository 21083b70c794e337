"""Move dead letters back to their stream."""

from typing import Any

from inbox._consuming.redriving import LetterChoice, check_no_loop, check_places
from inbox._consuming.text import readable
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.redriven import Only, Redriven

with brought_by("redis"):
    from inbox_outbox_base.brokers.redis_streams import address
    from inbox_outbox_base.brokers.redis_streams.client import FAILURES, is_login_refused, new_client, text_of

    from . import scripts
    from .dead_letters import moved_back
    from .delivery import STREAM, delivery_of, said_in

_PATIENCE = 10.0
_MOST = 100
"""Letters in one answer."""


def redrive(
    url: str,
    dead_letters: str,
    *,
    to: str | None = None,
    only: Only | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> Redriven:
    """Move dead letters back to the stream from which they came, to be handled again.

    A letter is deleted and added to its stream in one step, so it is always in one of them. It keeps its id,
    its key and its time, and has all its attempts again. It arrives behind the messages that wait, and every
    group of the stream gets it. Letters that stay are not touched; those that come while the call runs are
    not looked at.

    Args:
        url: redis://user:password@host:6379/0, or rediss:// with TLS.
        dead_letters: the stream with the dead letters, such as "orders.dead".
        to: the stream to which they go; by default each goes to the one that it names.
        only: a function of a `Delivery`: whether this message goes back; None: all.
        limit: move at most this many; None: all.
        dry_run: move nothing, and count what would be moved.

    Returns:
        How many were moved, and how many of those that were looked at were left.

    Raises:
        InvalidOption: an argument cannot be used: for example, there is no such stream, or a letter names no
            stream, and `to` is None.
        ConnectionError: Redis does not answer, or adds nothing; what was moved before stays moved.
        RuntimeError: called in an event loop; use `asyncio.to_thread`.
    """
    check_places("stream", dead_letters, to)
    if to == dead_letters:
        raise InvalidOption(f"to={to!r}: expected another stream than that of the dead letters")
    place, choice = address.parse(url), LetterChoice(only, limit)
    check_no_loop()
    client = new_client(place, _PATIENCE)
    try:
        _RedisMover(client, dead_letters, to, choice, dry_run).run()
    except FAILURES as error:
        if is_login_refused(error):
            raise InvalidOption(f"url: Redis refuses the login: {text_of(error)}") from None
        moved = f"{choice.moved} messages were moved before"
        raise ConnectionError(f"{place}: {text_of(error)}; {moved}") from None  # it may hold the login
    finally:
        client.close()
    return choice.result()


class _RedisMover:
    """One call."""

    def __init__(
        self, client: Any, letters: str, target: str | None, choice: LetterChoice, dry_run: bool
    ) -> None:
        self._client = client
        self._letters = letters
        self._target = target
        self._choice = choice
        self._dry_run = dry_run
        self._move = client.register_script(scripts.MOVE)

    def run(self) -> None:
        """Look at all letters that are there now."""
        for option, name in (("dead_letters", self._letters), ("to", self._target)):
            if name is not None and self._client.type(name) != b"stream":
                raise InvalidOption(f"{option}={name!r}: there is no such stream")
        newest = self._client.xrevrange(self._letters, count=1)
        after = "-"
        while not self._choice.is_full and newest:
            page = self._client.xrange(self._letters, after, newest[0][0], count=_MOST)
            for entry, fields in page:
                self._look(entry.decode(), fields)
            if len(page) < _MOST:
                return
            after = f"({page[-1][0].decode()}"

    def _look(self, entry: str, fields: dict[bytes, bytes]) -> None:
        delivery = delivery_of(self._letters, entry, fields, 1)
        if not self._choice.wants(delivery):
            self._choice.left += 1
            return
        name = self._target or said_in(fields).get(STREAM)
        if not isinstance(name, str) or name == self._letters:
            raise InvalidOption(f"to=None: {delivery.place} names no stream to which it could go back")
        name = readable(name)
        if not self._dry_run:
            flat = [part for pair in moved_back(delivery).items() for part in pair]
            answer = self._move(keys=[self._letters, name], args=[entry, *flat])
            if answer == -1:
                raise InvalidOption(f"to=None: {delivery.place} names {name!r}: there is no such stream")
            if answer == 0:  # somebody else has moved it
                return
        self._choice.moved += 1
