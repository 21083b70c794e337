"""A server that takes webhooks, in a process of its own, which tests may freeze and kill."""

import pickle
import socket
import sys
import time
from pathlib import Path

from examples.embedded_postgres import free_port
from inbox import Delivery
from tests.servers.local import LocalServer

WAIT = 60
"""Seconds, for what takes one on a machine that is not busy."""


class LocalWebhooks(LocalServer):
    """The server. `url` is the beginning of its endpoints' URLs."""

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        super().__init__("webhooks")

    def new(self, topic: str) -> str:
        """Let it take messages of a topic."""
        (self._folder / topic).mkdir()
        return topic

    def received(self, topic: str, count: int) -> list[Delivery]:
        """All messages of a topic in the order in which they came, at least `count`."""
        give_up = time.monotonic() + WAIT
        while len(files := self._files(topic)) < count and time.monotonic() < give_up:
            time.sleep(0.02)
        return [pickle.loads(path.read_bytes()) for path in files]  # noqa: S301 - our own files

    def ready(self) -> bool:
        """Whether something listens."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _files(self, topic: str) -> list[Path]:
        return sorted(path for path in (self._folder / topic).iterdir() if path.suffix != ".part")

    def _command(self) -> list[str]:
        program = "tests.support.brokers.webhook_program"
        return [sys.executable, "-m", program, str(self._port), str(self._folder)]
