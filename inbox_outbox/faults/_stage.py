"""Sees where the handler is, and lets a fault strike there."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

_LITERAL = re.compile(r"'(?:[^']|'')*'|\$([A-Za-z_]\w*|)\$.*?\$\1\$|(?<![\w$])\d+\b|\d{6,}")
"""What differs from message to message, and what is drawn by chance in names."""
_BEGIN = re.compile(r"(BEGIN|START TRANSACTION)\b[^;]*$", re.IGNORECASE)
_COMMIT = re.compile(r"(COMMIT|END)\b(?!\s+PREPARED)", re.IGNORECASE)
_BLOCKED, _IDLE = 0.4, 2.0
"""Seconds without an answer to a statement, and without anything, after which a delivery counts as waiting
for another."""
_SHOWN = 40
"""Characters of a statement that reports show."""


class SpotKind(StrEnum):
    """What is at a spot."""

    STATEMENT = "statement"
    COMMIT = "COMMIT"
    EFFECT = "effect"
    POINT = "point"


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a fault can strike: what the handler does there, and for which of a run's messages. It is the
    `occurrence`-th time, from one on, that a delivery of this message does it."""

    message: int
    kind: SpotKind
    text: str
    occurrence: int
    line: str = field(compare=False, default="")

    def __str__(self) -> str:
        what = self.text if len(self.text) <= _SHOWN else f"{self.text[: _SHOWN - 3]}..."
        if self.kind in (SpotKind.EFFECT, SpotKind.POINT):
            what = f"{self.kind} {what}"
        return f"{what} #{self.occurrence}" if self.occurrence > 1 else what

    @property
    def on_wire(self) -> bool:
        """Whether it is a statement."""
        return self.kind in (SpotKind.STATEMENT, SpotKind.COMMIT)


@dataclass(slots=True)
class Strike:
    """What happens once, before or after a spot. `act` says whether the handler goes on; where it does not,
    its connection breaks."""

    spot: Spot
    is_before: bool
    act: Callable[[], bool]
    is_done: bool = False

    def fits(self, spot: Spot, *, is_before: bool) -> bool:
        """Whether it is now."""
        return not self.is_done and self.is_before == is_before and self.spot == spot


class Stage:
    """Knows each spot that the deliveries of one run come to, and counts effects outside the database.

    `run_begins` makes it forget the last run. Only deliveries to the process that `watch` names are looked
    at. With `ask_line`, their spots are kept in `spots`, with their lines. `on_begin` is told which process
    begins something.
    """

    def __init__(self) -> None:
        self._moved = 0.0
        self._unanswered: dict[int, float] = {}
        self.on_begin: Callable[[int], None] = lambda _: None
        self.ask_line: Callable[[int], str] | None = None
        self.spots: list[Spot] = []
        self._lock = threading.Lock()
        self._calls = Counter[str]()
        self._keys: set[tuple[str, str]] = set()
        self._watched: tuple[int, int] | None = None
        self._seen = Counter[tuple[SpotKind, str]]()
        self._strike: Strike | None = None
        self._open_effects: dict[tuple[int, str], Spot | None] = {}

    def run_begins(self) -> None:
        """Forget the effects of the last run."""
        with self._lock:
            self._calls.clear()
            self._keys.clear()
            self.spots = []

    def watch(self, pid: int, message: int, strike: Strike | None = None) -> None:
        """Look at the next delivery to this process, of the run's message with this index."""
        with self._lock:
            self._watched = (pid, message)
            self._strike = strike
            self._seen.clear()

    def unwatch(self) -> None:
        """Look at no delivery."""
        with self._lock:
            self._watched = self._strike = None

    def effects(self) -> Counter[Any]:
        """How often each effect outside the database took place in this run."""
        with self._lock:
            return self._calls + Counter(name for name, _ in self._keys)

    def is_still(self, pid: int) -> bool:
        """Whether a delivery waits for somebody else: the server has not answered its statement for a while,
        or nothing at all has happened for much longer."""
        now = time.monotonic()
        with self._lock:
            return now - self._unanswered.get(pid, now) > _BLOCKED or now - self._moved > _IDLE

    def begins(self, pid: int) -> None:
        """A process is about to import the handler, or to take a message."""
        with self._lock:
            self._unanswered.pop(pid, None)
            self._moved = time.monotonic()
        self.on_begin(pid)

    def before(self, owner: int, statement: str) -> tuple[bool, tuple[int, Spot | None]]:
        """A statement is about to reach the server."""
        text = " ".join(statement.split()).rstrip("; ")
        goes_on, spot = True, None
        if text and not _BEGIN.match(text):
            kind = SpotKind.COMMIT if _COMMIT.match(text) else SpotKind.STATEMENT
            goes_on, spot = self._comes(owner, kind, _LITERAL.sub("?", text), None)
        with self._lock:
            self._unanswered[owner] = time.monotonic()
        return goes_on, (owner, spot)

    def after(self, running: tuple[int, Spot | None]) -> bool:
        """The server has answered a statement."""
        owner, spot = running
        with self._lock:
            self._unanswered.pop(owner, None)
            self._moved = time.monotonic()
        return self._leaves(spot)

    def marked(self, pid: int, kind: str, name: str, further: str | None) -> None:
        """The handler has reached a mark."""
        if kind == "point":
            self._comes(pid, SpotKind.POINT, name, further)
        elif kind == "begins":
            _, spot = self._comes(pid, SpotKind.EFFECT, name, further)
            self._open_effects[pid, name] = spot
        else:
            with self._lock:
                if further is None:
                    self._calls[name] += 1
                else:
                    self._keys.add((name, further))
            self._leaves(self._open_effects.pop((pid, name), None))

    def _comes(self, pid: int, kind: SpotKind, text: str, line: str | None) -> tuple[bool, Spot | None]:
        with self._lock:
            self._moved = time.monotonic()
            if self._watched is None or self._watched[0] != pid:
                return True, None
            self._seen[kind, text] += 1
            spot = Spot(self._watched[1], kind, text, self._seen[kind, text])
            strike = self._taken(spot, is_before=True)
        if self.ask_line is not None:
            self.spots.append(replace(spot, line=self.ask_line(pid) if line is None else line))
        return (True if strike is None else strike.act()), spot

    def _leaves(self, spot: Spot | None) -> bool:
        if spot is None:
            return True
        with self._lock:
            strike = self._taken(spot, is_before=False)
        return True if strike is None else strike.act()

    def _taken(self, spot: Spot, *, is_before: bool) -> Strike | None:
        strike = self._strike
        if strike is None or not strike.fits(spot, is_before=is_before):
            return None
        strike.is_done = True
        return strike
