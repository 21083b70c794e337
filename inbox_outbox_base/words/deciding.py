"""What operators' functions return: listings, the results of bulk decisions, and stored decisions."""

import gzip
import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from typing import Any, Self, TypeVar

T = TypeVar("T")

MOST_SEEN = 10_000
"""The most messages that `seen` names."""

_LONGEST = 4_096
"""The most bytes of one of them: enough for the longest name and key, each character of which is escaped."""

Place = Sequence[Any]
"""What finds a message again, and tells whether it has changed."""


class Listing(list[T]):
    """A list of what was there, with `seen` for a bulk decision about exactly this."""

    def __init__(self, found: Iterable[T], seen: Callable[[], str]) -> None:
        super().__init__(found)
        self._seen = seen

    @property
    def seen(self) -> str:
        """Opaque text that names the listed messages, and how they were: pass it to a bulk decision. If there
        are more than 10,000, it names the first 10,000. Its characters are safe in a URL and in a form."""
        return self._seen()


class BulkResult(int):
    """The number of messages that a bulk decision took, or with `dry_run` would take."""

    _changed: int
    _left: int

    def __new__(cls, done: int, changed: int = 0, left: int = 0) -> Self:
        """`done`, `changed` and `left` messages."""
        made = super().__new__(cls, done)
        made._changed, made._left = changed, left
        return made

    @property
    def done(self) -> int:
        """The number itself."""
        return int(self)

    @property
    def changed(self) -> int:
        """How many others had changed, or were gone, since they were seen: they were left as they are."""
        return self._changed

    @property
    def left(self) -> int:
        """How many were left because they cannot be delivered (`deliver=True`); the log names them."""
        return self._left

    def __repr__(self) -> str:
        return f"BulkResult(done={self.done}, changed={self.changed}, left={self.left})"

    def __reduce__(self) -> tuple[Any, ...]:
        return BulkResult, (self.done, self.changed, self.left)


@dataclass(frozen=True, slots=True)
class OperatorDecision:
    """What an operator has decided: one for each transaction, so a bulk decision may have several."""

    id: str
    """Drawn at random."""
    at: datetime
    """When, by the database's clock."""
    by: str
    """Who."""
    action: str
    """The function, such as "outbox.retry_all"."""
    filter: Mapping[str, Any]
    """What it was about: the function's arguments, as JSON values. `seen` is the number of messages that the
    call named."""
    count: int
    """How many messages (topics, consumers) this transaction changed."""
    why: str | None
    """The reason, if one was given."""


def packed(kind: str, places: Sequence[Place]) -> str:
    """Opaque text for the first of these places; `kind` says of what they are."""
    lines = (json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in places[:MOST_SEEN])
    content = "\n".join((kind, *lines)).encode(errors="surrogateescape")
    return urlsafe_b64encode(gzip.compress(content, mtime=0)).decode()


def unpacked(text: str) -> Iterator[Any]:
    """The kind, and then the places, one after the other: text that somebody else has made may be about to
    become thousands of times as large.

    Raises:
        ValueError: this did not come from `packed`.
    """
    try:
        with gzip.open(BytesIO(urlsafe_b64decode(text))) as file:
            yield file.readline(_LONGEST).decode().removesuffix("\n")
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST), b"")):
                if number == MOST_SEEN:
                    raise ValueError("too many")
                yield json.loads(line)
    except (OSError, EOFError, zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from None
