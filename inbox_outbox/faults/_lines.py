"""Which line of the user's a process is at."""

import asyncio
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import Any

_OURS = ("inbox", "inbox_outbox", "inbox_outbox_base", "outbox", "spark")
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def line_of(frame: FrameType | None) -> str:
    """The innermost line of the user's own code from this frame outwards, as `file.py:12`; "" if none is."""
    while frame is not None:
        if _is_users(frame):
            return _line(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return ""


def first_line(code: CodeType) -> str:
    """Where a function begins."""
    return _line(code, code.co_firstlineno)


def current_line() -> str:
    """The line of the user's that some thread or task of this process waits in; "" if none does."""
    frames = sys._current_frames().values()  # noqa: SLF001 - there is no other way
    lines = (line_of(frame) for frame in [*_tasks(), *frames])
    return next((line for line in lines if line), "")


def _tasks() -> Iterator[FrameType]:
    """The innermost frames of the user's coroutines, whose frames no thread has."""
    tasks: set[asyncio.Task[Any]] = set()
    for loop in _loops():
        tasks |= asyncio.all_tasks(loop)
    for task in tasks:
        frames = []
        waits: Any = task.get_coro()
        while isinstance(waits, CoroutineType):
            if waits.cr_frame is not None:
                frames.append(waits.cr_frame)
            waits = waits.cr_await
        yield from (frame for frame in reversed(frames) if _is_users(frame))


def _loops() -> list[asyncio.AbstractEventLoop]:
    return [loop for loop in _running if not loop.is_closed()]


_running: list[asyncio.AbstractEventLoop] = []
"""The loop that the handler runs in, if it is asynchronous."""


def note_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Look for the user's line among this loop's tasks, too."""
    _running.append(loop)


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in _OURS and not file.startswith(("<", *_LIBRARIES))


def _line(code: CodeType, number: int) -> str:
    file = Path(code.co_filename)
    place = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file.name
    return f"{place}:{number}"
