"""The first connection of a consumer: later ones may fail, this one must not."""

from typing import Any

from nats.js.api import ConsumerConfig
from nats.js.errors import BadRequestError, NotFoundError

from inbox._consuming.leased.consumer import NotThere
from inbox_outbox_base.brokers.nats.client import FAILURES, has_no_jetstream, is_login_refused, text_of
from inbox_outbox_base.errors.inbox import InvalidOption

from . import options
from .link import PullLink


async def connected(
    link: PullLink, stream: str, wanted: ConsumerConfig, dead_letter: Any, max_attempts: int | None
) -> ConsumerConfig:
    """Connect, and check the consumer; its settings.

    Raises:
        NotThere: there is no such stream.
        InvalidOption: NATS refuses the login, the consumer's settings do not go with
            the options, or no other stream takes the dead letters.
        ConnectionError: NATS does not answer.
    """
    try:
        found = await link.open()
        options.check_consumer(found, wanted, max_attempts)
        if isinstance(dead_letter, str):
            await _check_dead_letter(link, stream, dead_letter)
    except NotFoundError as error:
        raise NotThere(f"stream={stream!r}: there is no such stream") from error
    except BadRequestError as error:
        durable = wanted.durable_name
        raise InvalidOption(f"durable={durable!r}: the consumer cannot be made: {text_of(error)}") from error
    except (FileNotFoundError, PermissionError) as error:
        raise InvalidOption(f"url: cannot read {error.filename!r}") from error
    except FAILURES as error:
        if is_login_refused(error):
            raise InvalidOption(f"url: NATS refuses the login: {text_of(error)}") from error
        if has_no_jetstream(error):
            raise InvalidOption(f"url: JetStream is not enabled there: {text_of(error)}") from error
        raise ConnectionError(text_of(error)) from error
    return found


async def _check_dead_letter(link: PullLink, stream: str, subject: str) -> None:
    try:
        other = await link.stream_of(subject)
    except NotFoundError:
        raise InvalidOption(f"dead_letter={subject!r}: no stream takes this subject") from None
    if other == stream:
        raise InvalidOption(f"dead_letter={subject!r}: stream {stream!r} takes it, so they would come back")
