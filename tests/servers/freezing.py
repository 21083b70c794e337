"""Stop processes with SIGSTOP in the middle of their work, as on a machine that swaps."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def freeze(process: int) -> None:
    """Stop a process, given by its number, until `thaw`; its connections stay open.

    One of its threads takes the signal and stops the others. Until that thread gets a core, the others go on:
    for 20 ms on a busy machine, enough for a server to answer. So this returns only when all of them have
    stopped.
    """
    os.kill(process, signal.SIGSTOP)
    while not all(state in "tTZX" for state in _states(process)):
        time.sleep(0.001)


def thaw(process: int) -> None:
    """Let a process continue after `freeze`."""
    os.kill(process, signal.SIGCONT)


def _states(process: int) -> list[str]:
    """The states of a process's threads, as letters."""
    found = []
    for file in Path(f"/proc/{process}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends
            found.append(file.read_text().rpartition(")")[2].split()[0])
    return found
