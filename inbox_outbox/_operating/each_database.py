"""Commands that look at several databases: their addresses, and questions to all of them at once."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Generic, TypeVar

import typer
from sqlalchemy import Engine

from inbox.errors import InvalidOption
from inbox.migration import URL_VARIABLE
from inbox_outbox._connect import engine_at
from inbox_outbox_base.errors import secrets

T = TypeVar("T")
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})=([A-Za-z0-9+]+://.*)", re.DOTALL)
_PATIENCE = 10.0
"""Seconds to wait for databases that do not answer."""

Urls = Annotated[
    list[str],
    typer.Option(
        "--url",
        envvar=URL_VARIABLE,
        show_envvar=True,
        metavar="URL",
        help="The database, like postgresql://user@host/db; behind a pooler in transaction mode"
        " add ?prepare_threshold=none. For several, each with a name: shop=URL.",
    ),
]


def addresses(urls: Sequence[str]) -> dict[str, str]:
    """The URLs of several databases, by their names; of one without a name, the name is empty.

    Raises:
        InvalidOption: one of several has no name, or another one's. The error names no address.
    """
    whole = os.environ.get(URL_VARIABLE, "")
    named = [_NAMED.fullmatch(each) for each in urls]
    if not all(named) and list(urls) == whole.split():  # one address, which has a blank
        urls, named = [whole], [None]
    if len(urls) == 1 and named[0] is None:
        return {"": urls[0]}
    found: dict[str, str] = {}
    for number, each in enumerate(named, 1):
        if each is None:
            raise InvalidOption(
                f"--url: the database number {number} has no name; of several, write shop=postgresql://..."
            )
        if each[1] in found:
            raise InvalidOption(f"--url: two databases have the name {each[1]!r}")
        found[each[1]] = each[2]
    return found


@contextmanager
def engines_at(urls: Sequence[str], schema: str | None) -> Iterator[dict[str, Engine]]:
    """Engines for the duration of a command, by the names of `addresses`. One database must answer now; of
    several, each may be away.

    Raises: the errors of `addresses` and `engine_at`.
    """
    with ExitStack() as stack:
        found: dict[str, Engine] = {}
        for name, url in addresses(urls).items():
            option = f"url {name}" if name else "url"
            found[name] = stack.enter_context(engine_at(url, schema, option, looks=not name))
        yield found


class EachDatabase(Generic[T]):
    """Asks several databases at once. One that does not answer delays the others once, by ten seconds, and is
    not asked again until it does.

    Args:
        engines: the databases, by their names.
        ask: the question to one of them; it may raise.
    """

    def __init__(self, engines: Mapping[str, Engine], ask: Callable[[Engine], T]) -> None:
        self._engines, self._ask = engines, ask
        self._asking: dict[str, tuple[threading.Thread, float]] = {}
        """Who is being asked, and until when that is waited for."""
        self._answers: dict[str, T | Exception] = {}

    def answers(self) -> dict[str, T | str]:
        """By name, each one's answer; or why there is none, as text."""
        now = time.monotonic()
        for name in self._engines:
            if name not in self._asking:
                asking = threading.Thread(target=self._run, args=(name,), daemon=True)
                self._asking[name] = asking, now + _PATIENCE
                asking.start()
        return {name: self._answer(name) for name in self._engines}

    def _answer(self, name: str) -> T | str:
        asking, end = self._asking[name]
        asking.join(max(0.0, end - time.monotonic()))
        if asking.is_alive():
            return f"no answer within {_PATIENCE:.0f} s"
        del self._asking[name]
        found = self._answers.pop(name)
        return secrets.reason(found) if isinstance(found, Exception) else found

    def _run(self, name: str) -> None:
        try:
            self._answers[name] = self._ask(self._engines[name])
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no answer
            self._answers[name] = error
