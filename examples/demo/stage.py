"""The processes of act three, killed at random."""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import Engine

from examples._outbox import waiting
from examples.demo import senders
from examples.demo.senders import Program, Request
from examples.order_flow.processes import CONTEXT, PATIENCE, Child

CONTEXT.set_forkserver_preload(["examples.demo.__main__"])

KILLS, RELAY_KILLS, RELAYS = 20, 8, 2
SEED = 2013


class Stage:
    """A program that answers requests, and the relays behind it if it has an outbox.

    A killed program's current request is not repeated: a new program goes on with the next one.
    """

    def __init__(self, engine: Engine, file: Path, program: Program, requests: Sequence[Request]) -> None:
        self._engine = engine
        self._file = file
        self._program = program
        self._requests = requests
        self._relays: list[Child] = []
        self._chance = random.Random(SEED)
        self._took = 0.0
        self.killed = self.relays_killed = 0

    def run(self, progress: Callable[[int], object]) -> None:
        """Run until all requests are answered and the outbox is empty.

        Raises:
            RuntimeError: a process does not start, or ends unexpectedly.
        """
        try:
            if self._program is senders.with_outbox:
                self._relays = [self._relay() for _ in range(RELAYS)]
            self._answer_all(progress)
            while waiting(self._engine):
                self._check_relays()
                time.sleep(0.02)
            for relay in self._relays:
                relay.end()
        finally:
            for relay in self._relays:
                relay.kill()

    def _answer_all(self, progress: Callable[[int], object]) -> None:
        moments, relay_moments = self._moments(KILLS), self._moments(RELAY_KILLS if self._relays else 0)
        begun, total, program = 0, len(self._requests), self._start(0)
        try:
            while begun < total:
                since = time.monotonic()
                last, begun = begun, self._hear(program)
                if begun == last + 1:
                    self._took = time.monotonic() - since
                progress(begun)
                if relay_moments and begun >= relay_moments[0]:
                    relay_moments.popleft()
                    self._kill_a_relay()
                if moments and begun >= moments[0] and begun < total:
                    moments.popleft()
                    self._wait()
                    begun = self._kill(program, begun)
                    if begun < total:
                        program = self._start(begun)
            program.end()
        finally:
            program.kill()

    def _moments(self, kills: int) -> deque[int]:
        """The numbers of requests after which a process is killed; at most every other one."""
        kills = min(kills, len(self._requests) // 2)
        return deque(sorted(self._chance.sample(range(len(self._requests)), kills)))

    def _wait(self) -> None:
        """Wait until a random moment of the current request, assuming it takes as long as the last one."""
        time.sleep(self._chance.uniform(0, self._took))

    def _start(self, first: int) -> Child:
        given = (self._engine.url, self._file, self._program, self._requests[first:], first)
        return Child.start(senders.main, *given)

    def _relay(self) -> Child:
        return Child.start(senders.relay, self._engine.url, self._file)

    def _hear(self, program: Child) -> int:
        """Wait until the program begins a request; return its number."""
        try:
            if program.pipe.poll(PATIENCE):
                number: int = program.pipe.recv()
                return number
        except (EOFError, OSError):
            pass
        raise RuntimeError("a program of act three ended unexpectedly")

    def _kill(self, program: Child, begun: int) -> int:
        """Kill it with kill -9; return the number of the first request it had not begun."""
        program.process.kill()
        program.process.join()
        self.killed += 1
        try:
            while program.pipe.poll(PATIENCE):
                begun = program.pipe.recv()
        except (EOFError, OSError):
            program.pipe.close()
        return min(begun + 1, len(self._requests))

    def _kill_a_relay(self) -> None:
        self._wait()
        place = self._chance.randrange(len(self._relays))
        self._relays[place].kill()
        self._relays[place] = self._relay()
        self.relays_killed += 1

    def _check_relays(self) -> None:
        if not all(relay.process.is_alive() for relay in self._relays):
            raise RuntimeError("a relay ended unexpectedly")
