"""Several cases in one test, where only the first access to a database is expensive."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(name: object) -> Iterator[None]:
    """One of the cases; a failure names it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {name!s:.200}")
        raise
