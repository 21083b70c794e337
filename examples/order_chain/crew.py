"""The processes of a trial, killed at random and restarted."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from random import Random
from types import TracebackType
from typing import Any, Self

from examples.order_flow.processes import CONTEXT, PATIENCE, Child

CONTEXT.set_forkserver_preload(["examples.order_flow.services", "examples.order_chain.__main__"])

TAKEN = {"new", "duplicate"}


@dataclass(slots=True)
class Heard:
    """The reports of all workers, including killed ones."""

    sent: set[str] = field(default_factory=set)
    """The orders whose transactions have ended."""
    deliveries: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each message was delivered to a step, by topic and id."""
    verdicts: Counter[str] = field(default_factory=Counter)
    taken: set[tuple[str, str]] = field(default_factory=set)
    """The messages that have taken effect, by topic and id."""

    def take(self, kind: str, *what: str) -> None:
        """Record one report."""
        match kind, what:
            case "sent", (number,):
                self.sent.add(number)
            case "delivered", (topic, message):
                self.deliveries[topic, message] += 1
            case "verdict", (topic, message, verdict):
                self.verdicts[verdict] += 1
                if verdict in TAKEN:
                    self.taken.add((topic, message))

    @property
    def redelivered(self) -> int:
        """The number of repeated deliveries."""
        return self.deliveries.total() - len(self.deliveries)


@dataclass(frozen=True, slots=True)
class Role:
    """What a worker does, and its arguments at every start."""

    name: str
    main: Callable[..., None]
    arguments: Callable[[], Sequence[Any]]

    def start(self) -> Child:
        """Start a worker."""
        return Child.start(self.main, *self.arguments())


class Crew:
    """One worker for each role, ended when the ``with`` block is left."""

    def __init__(self, roles: Sequence[Role], heard: Heard, chance: Random) -> None:
        self._roles = roles
        self._heard = heard
        self._chance = chance
        self._children = [role.start() for role in roles]
        self.killed: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            for child in self._children:
                child.pipe.send("end")
            for child in self._children:
                self._hear_out(child)
                child.process.join(PATIENCE)
        for child in self._children:
            child.kill()

    def listen(self, patience: float) -> None:
        """Collect the workers' reports for `patience` seconds.

        Raises:
            RuntimeError: a worker has ended unexpectedly.
        """
        speaking = wait([child.pipe for child in self._children], patience)
        for child in self._children:
            if child.pipe in speaking:
                try:
                    self._heard.take(*child.pipe.recv())
                except (EOFError, OSError):
                    raise RuntimeError("a worker ended unexpectedly") from None

    def kill_one(self, *spared: str) -> None:
        """Kill a worker whose role is not spared with kill -9, collect its reports, and start another."""
        places = [place for place, role in enumerate(self._roles) if role.name not in spared]
        place = self._chance.choice(places)
        child = self._children[place]
        child.process.kill()
        child.process.join()
        self._hear_out(child)
        child.pipe.close()
        self._children[place] = self._roles[place].start()
        self.killed[self._roles[place].name] += 1

    def _hear_out(self, child: Child) -> None:
        try:
            while child.pipe.poll(PATIENCE):
                self._heard.take(*child.pipe.recv())
        except (EOFError, OSError):
            pass
