"""What the conformance suites of publishers and consumers share. Imports pytest."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

import pytest

T = TypeVar("T")


class Suite:
    """A test class to inherit from: the subclass says how to reach the adapter and its server."""

    cannot: ClassVar[Mapping[str, str]] = {}
    """By name, the tests that your adapter cannot pass, with the reason: they are skipped and show it."""
    patience: ClassVar[float] = 60.0
    """Seconds to wait for things that usually take milliseconds."""

    @pytest.fixture(autouse=True)
    def _skips_what_it_cannot(self, request: pytest.FixtureRequest) -> None:
        unknown = [name for name in self.cannot if not callable(getattr(type(self), name, None))]
        if unknown:
            pytest.fail(f"cannot={unknown}: there are no such tests")
        name = request.function.__name__
        if name in self.cannot:
            pytest.skip(f"{type(self).__name__} cannot: {self.cannot[name]}")

    def freeze(self) -> None:
        """Optional: stop the server until `thaw`, with its connections open, as SIGSTOP does."""
        self._lacks("freeze and thaw")

    def thaw(self) -> None:
        """Optional: let the server go on after `freeze`."""
        self._lacks("freeze and thaw")

    def kill(self) -> None:
        """Optional: crash the server, as SIGKILL does."""
        self._lacks("kill and start")

    def start(self) -> None:
        """Optional: start the server again after `kill`; it must have all that it had confirmed."""
        self._lacks("kill and start")

    def _lacks(self, what: str) -> NoReturn:
        pytest.skip(f"{type(self).__name__} does not define {what}")

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Return once the condition holds; fail if it does not within `patience`."""
        deadline = time.monotonic() + self.patience
        while not condition():
            assert time.monotonic() < deadline, f"it does not happen within {self.patience:g} s"
            time.sleep(0.02)

    def together(self, *works: Callable[[], T]) -> list[T]:
        """Run functions at the same time, and return their results; the first error is raised."""
        return [running.result(self.patience) for running in [Running(work) for work in works]]


class Running(Generic[T]):
    """A function that runs in a thread from now on. Even if it hangs, the tests end."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it has returned or raised."""
        return not self._thread.is_alive()

    def result(self, timeout: float, name: str = "it") -> T:
        """Its result, or its error raised; fails if it still runs after this many seconds."""
        self._thread.join(timeout)
        if not self.is_over:
            pytest.fail(f"{name} still runs after {timeout:g} s")
        for error in self._errors:
            raise error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._errors.append(error)


def each_once(answers: Iterator[Any] | list[Any], count: int) -> list[Any]:
    """The outcomes of a batch in its order, however the publisher gives them; fails unless every message has
    exactly one."""
    found: dict[int, Any] = {}
    for turn, answer in enumerate(answers):
        place, outcome = answer if isinstance(answer, tuple) else (turn, answer)
        assert place not in found, f"two outcomes for message {place}"
        found[place] = outcome
    assert sorted(found) == list(range(count)), f"outcomes for {sorted(found)} of {count} messages"
    return [found[place] for place in range(count)]
