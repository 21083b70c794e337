"""What runs in the handler's processes: they import the handler, and call it when the kit says so."""

import asyncio
import importlib
import importlib.util
import inspect
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from . import _lines, _marks
from ._switchboard import connect

ADDRESS = "INBOX_OUTBOX_FAULTS"
"""The environment variable that leads a process to its kit."""


@dataclass(frozen=True, slots=True)
class HandlerTarget:
    """Where the handler is: its module, the module's file if it is known, and its name in the module."""

    module: str
    file: str | None
    name: str

    def load(self) -> Callable[[Any], Any]:
        """Import it, by its module's name or else from its file."""
        found: Any = _module(self.module, self.file)
        for part in self.name.split("."):
            found = getattr(found, part)
        if not callable(found):
            raise TypeError(f"{self.module}:{self.name} is not callable")
        return found  # type: ignore[no-any-return]


def launch() -> None:
    """Import the handler; then be its process, or fork one whenever the kit asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the kit, which ends its processes
    logging.lastResort = logging.NullHandler()  # complaints about faults are for a log that somebody set up
    address = os.environ.pop(ADDRESS)
    orders = connect(address, os.getpid(), "orders")
    target, directly = orders.recv()
    try:
        handler = target.load()
    except BaseException:  # noqa: BLE001 - the kit says it
        orders.send(("failed", traceback.format_exc()))
        return
    orders.send(("ready", not directly and _can_fork()))
    if directly:
        _work(address, handler)
    while _is_asked(orders):
        pid = os.fork()
        if pid == 0:
            orders.close()
            _work(address, handler)
        orders.send(pid)
        _reap()


def _can_fork() -> bool:
    """Whether a fork shares neither threads nor connections with this process, its connection to the kit
    aside. Where there is no /proc, connections and the threads of libraries are not seen."""
    tasks, files = Path("/proc/self/task"), Path("/proc/self/fd")
    if not files.is_dir():
        return threading.active_count() == 1
    own = [file for file in files.iterdir() if int(file.name) > 2 and file.is_symlink()]
    sockets = [file for file in own if str(file.readlink()).startswith("socket:")]
    return len(list(tasks.iterdir())) == 1 and len(sockets) == 1


def _is_asked(orders: Connection) -> bool:
    try:
        orders.recv()
    except (EOFError, OSError):
        return False
    return True


def _reap() -> None:
    """Children that have ended leave nothing behind."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _work(address: str, handler: Callable[[Any], Any]) -> NoReturn:
    """Call the handler for each message that comes, and answer what became of it; end when the kit does."""
    pid = os.getpid()
    work = connect(address, pid, "work")
    _marks.listen_to(connect(address, pid, "marks"))
    lines = connect(address, pid, "lines")
    threading.Thread(target=_say_where, args=(lines, handler), daemon=True).start()
    with asyncio.Runner() as runner:
        is_async = inspect.iscoroutinefunction(inspect.unwrap(handler))
        if is_async:
            _lines.note_loop(runner.get_loop())
        while True:
            try:
                message = work.recv()
            except (EOFError, OSError):
                os._exit(0)  # threads of the handler's do not keep it
            work.send(_answer(runner, handler, message))


def _answer(runner: asyncio.Runner, handler: Callable[[Any], Any], message: Any) -> str | None:
    """None if the handler answers, else what it has raised."""
    try:
        result = handler(message)
        if inspect.iscoroutine(result):
            runner.run(result)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the broker delivers again
        text = str(error).strip().partition("\n")[0]
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return None


def _say_where(lines: Connection, handler: Callable[[Any], Any]) -> None:
    """Answer the kit's questions for the line that the handler is at."""
    code = getattr(inspect.unwrap(handler), "__code__", None)
    try:
        while True:
            lines.recv()
            lines.send(_lines.current_line() or (_lines.first_line(code) if code else ""))
    except (EOFError, OSError):
        return


def _module(name: str, file: str | None) -> Any:
    if name != "__main__":
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if file is None or error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
        else:
            if file is None or Path(found.__file__ or "").resolve() == Path(file).resolve():
                return found
    alias = "__mp_main__" if name == "__main__" else name  # as multiprocessing calls it
    spec = importlib.util.spec_from_file_location(alias, file or "")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}: there is no module in {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = sys.modules[alias] = module
    spec.loader.exec_module(module)
    return module
