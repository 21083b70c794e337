"""Optional dependencies: an import that fails names the extra to install."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """Around imports that need an extra.

    Raises:
        ModuleNotFoundError: a package is not installed; the error names it and its extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        said = f"{error.name} is not installed; install inbox-outbox[{extra}]"
        raise ModuleNotFoundError(said, name=error.name) from error


def check_greenlet() -> None:
    """Check that greenlet is installed: asynchronous code runs the synchronous core inside it.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    with brought_by("asyncio"):
        import_module("greenlet")
