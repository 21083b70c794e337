"""A line that shows a command's progress."""

from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class ProgressLine:
    """A progress line, on a terminal only; a context manager."""

    def __init__(self, text: str) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(text, total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def show(self, text: str) -> None:
        """Show this text in the line."""
        self._bar.update(self._task, description=text)

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()
