"""A clock for a purge."""

import pytest
from sqlalchemy import Connection, Engine, event


class Clock:
    """The purge's clock: it stands still, except while the purge deletes a batch or sleeps."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.rests: list[float] = []
        self.rested_at: list[float] = []
        monkeypatch.setattr("inbox._operating.purging.time", self)
        event.listen(engine, "commit", self._work)

    def monotonic(self) -> float:
        """The time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Sleep, which is noted."""
        self.rested_at.append(self.now)
        self.rests.append(seconds)
        self.now += seconds

    def _work(self, _: Connection) -> None:
        self.now += 3
