"""What is not installed with inbox-outbox alone: an import that fails names the extra."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """Around imports that need an extra.

    Raises:
        ModuleNotFoundError: something is not installed; it says what, and which extra brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        said = f"{error.name} is not installed; inbox-outbox[{extra}] brings it"
        raise ModuleNotFoundError(said, name=error.name) from error


def check_greenlet() -> None:
    """In asynchronous code the synchronous core runs inside it.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    with brought_by("asyncio"):
        import_module("greenlet")
