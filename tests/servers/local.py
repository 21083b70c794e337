"""A server that runs as a process of this machine, and that a test may crash."""

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from examples.embedded_postgres import ServerProcess, private_folder
from tests.servers import freezing


class LocalServer:
    """A server on free ports of 127.0.0.1, with its data in a temporary folder.

    What it has acknowledged outlives its process. A subclass chooses the ports, then calls `__init__`.

    Args:
        name: begins the name of its folder.
        user: the account that it runs as; None: the caller's own.
    """

    def __init__(self, name: str, user: str | None = None) -> None:
        self._user = user
        self._folder = private_folder(f"{name}-", user)
        try:
            self._prepare()
            self.start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def ready(self) -> bool:
        """Whether it answers."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it, after `kill` at the same address, and wait until it is ready."""
        self._process = ServerProcess(self._command(), self._folder, user=self._user, is_ready=self.ready)

    def kill(self) -> None:
        """Crash it, as `kill -9` does."""
        self._process.stop(signal.SIGKILL)

    def restart(self) -> None:
        """Crash it and start it again."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop it with SIGSTOP until `thaw`; its connections stay open."""
        freezing.freeze(self._process.pid)

    def thaw(self) -> None:
        """Let it continue after `freeze`."""
        freezing.thaw(self._process.pid)

    def stop(self) -> None:
        """End it and remove everything it wrote; killed, because an orderly end would write more."""
        self.kill()
        shutil.rmtree(self._folder)

    def _prepare(self) -> None:
        """Write what it needs before its first start."""

    def _command(self) -> Sequence[str | Path]:
        """How to run it."""
        raise NotImplementedError
