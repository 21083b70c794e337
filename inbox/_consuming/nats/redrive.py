"""Move dead letters back to the stream from which they came."""

import asyncio
import base64
import logging
from datetime import datetime
from typing import Any

from inbox._consuming.redriving import LetterChoice, check_no_loop, check_places
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.redriven import Only, Redriven

with brought_by("nats"):
    from nats.js.errors import NotFoundError

    from inbox_outbox_base.brokers.nats import address
    from inbox_outbox_base.brokers.nats.client import (
        FAILURES,
        Client,
        Msg,
        close,
        connect,
        is_login_refused,
        text_of,
    )
    from inbox_outbox_base.brokers.nats.message import reason_not_a_subject, size_of

    from .dead_letters import moved_back, source_of
    from .delivery import delivery_of, place_of

_log = logging.getLogger("inbox.nats")
_PATIENCE = 10.0


def redrive(
    url: str,
    dead_letters: str,
    *,
    to: str | None = None,
    only: Only | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> Redriven:
    """Move dead letters back to the subject from which they came, to be handled again.

    A letter is deleted after another stream has confirmed it, so none is lost; one that is moved twice is
    taken once. It keeps its id, its key and its time, and has all its attempts again. It arrives behind the
    messages that wait, and every durable consumer of its stream gets it. Letters that stay are not touched;
    those that come while the call runs are not looked at.

    Args:
        url: nats://user:password@host:4222, or tls://; as for `NatsConsumer`.
        dead_letters: the stream with the dead letters, such as "orders-dead".
        to: the subject to which they go; by default each goes to the one that it names.
        only: a function of a `Delivery`: whether this message goes back; None: all.
        limit: move at most this many; None: all.
        dry_run: move nothing, and count what would be moved.

    Returns:
        How many were moved, and how many of those that were looked at were left. A letter that is too large
        for the server is counted as failed, and a WARNING names it.

    Raises:
        InvalidOption: an argument cannot be used: for example, there is no such stream, or a letter names no
            subject, and `to` is None.
        ConnectionError: NATS does not answer, or a stream takes nothing; what was moved before stays moved.
        RuntimeError: called in an event loop; use `asyncio.to_thread`.
    """
    check_places("stream", dead_letters, to)
    if to is not None and (reason := reason_not_a_subject(to)):
        raise InvalidOption(f"to={to!r}: {reason}")
    place, choice = address.parse(url), LetterChoice(only, limit)
    check_no_loop()
    try:
        asyncio.run(_NatsMover(dead_letters, to, choice, dry_run).run(place))
    except FAILURES as error:
        if is_login_refused(error):
            raise InvalidOption(f"url: NATS refuses the login: {text_of(error)}") from None
        moved = f"{choice.moved} messages were moved before"
        raise ConnectionError(f"{place}: {text_of(error)}; {moved}") from error
    return choice.result()


class _NatsMover:
    """One call."""

    def __init__(self, letters: str, target: str | None, choice: LetterChoice, dry_run: bool) -> None:
        self._letters = letters
        self._target = target
        self._choice = choice
        self._dry_run = dry_run
        self._checked: set[str] = set()
        """Subjects that another stream takes."""

    async def run(self, place: address.NatsAddress) -> None:
        """Look at all letters that are there now."""
        client = await connect(
            place, _PATIENCE, on_error=lambda _: None, on_end=lambda: None, name="inbox redrive"
        )
        try:
            await self._look_at_all(client, client.jetstream(timeout=_PATIENCE))
        finally:
            await close(client)

    async def _look_at_all(self, client: Client, jetstream: Any) -> None:
        try:
            state = (await jetstream.stream_info(self._letters)).state
        except NotFoundError:
            raise InvalidOption(f"dead_letters={self._letters!r}: there is no such stream") from None
        if self._target is not None:
            await self._check(jetstream, self._target, f"to={self._target!r}")
        sequence = state.first_seq
        while sequence <= state.last_seq and not self._choice.is_full:
            try:
                found = await jetstream.get_msg(self._letters, sequence, ">", next=True)
            except NotFoundError:  # the rest was deleted
                return
            if found.seq > state.last_seq:
                return
            await self._look(client, jetstream, _letter(client, self._letters, found))
            sequence = found.seq + 1

    async def _look(self, client: Client, jetstream: Any, letter: Msg) -> None:
        delivery = delivery_of(letter, 1)
        if not self._choice.wants(delivery):
            self._choice.left += 1
            return
        subject = self._target or source_of(letter)
        if subject is None:
            raise InvalidOption(f"to=None: {place_of(letter)} names no subject to which it could go back")
        await self._check(jetstream, subject, f"to=None: {place_of(letter)} names {subject!r}")
        headers = moved_back(delivery)
        if size_of(headers) + len(letter.data) > client.max_payload:
            _log.warning("%s: too large to be moved back", place_of(letter))
            self._choice.failed += 1
            return
        if not self._dry_run:
            await jetstream.publish(subject, letter.data, headers=headers, timeout=_PATIENCE)
            await jetstream.delete_msg(self._letters, letter.metadata.sequence.stream)
        self._choice.moved += 1

    async def _check(self, jetstream: Any, subject: str, said: str) -> None:
        if subject in self._checked:
            return
        try:
            stream = await jetstream.find_stream_name_by_subject(subject)
        except NotFoundError:
            raise InvalidOption(f"{said}: no stream takes this subject") from None
        if stream == self._letters:
            raise InvalidOption(f"{said}: the stream of the dead letters takes this subject")
        self._checked.add(subject)


def _letter(client: Client, stream: str, found: Any) -> Msg:
    """The message as if a consumer had received it."""
    at: datetime = found.time
    microseconds = int(at.timestamp()) * 1_000_000 + at.microsecond
    reply = f"$JS.ACK.{stream}.redrive.1.{found.seq}.1.{microseconds}000.0"
    return Msg(
        client, subject=found.subject, reply=reply, data=found.data or b"", headers=_headers(found.hdrs)
    )


def _headers(encoded: str | None) -> dict[str, str]:
    """The headers as they are: the client's own reading of a stored message changes what is not ASCII."""
    lines = base64.b64decode(encoded or "").decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip(): text.strip() for name, _, text in pairs}
