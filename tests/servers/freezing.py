"""Processes that stand still in the middle of what they do, as on a machine that swaps."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def freeze(process: int) -> None:
    """Let a process, by its number, do nothing until `thaw`; its connections stay.

    One of its threads takes the signal and stops the others. Until that thread gets a core they go on: for
    20 ms on a busy machine, in which a server answers. So this returns once all of them stand still.
    """
    os.kill(process, signal.SIGSTOP)
    while not all(state in "tTZX" for state in _states(process)):
        time.sleep(0.001)


def thaw(process: int) -> None:
    """Let a process go on after `freeze`."""
    os.kill(process, signal.SIGCONT)


def _states(process: int) -> list[str]:
    """The states of its threads, as letters."""
    found = []
    for file in Path(f"/proc/{process}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends
            found.append(file.read_text().rpartition(")")[2].split()[0])
    return found
