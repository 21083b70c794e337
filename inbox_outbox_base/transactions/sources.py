"""Sources on which a transaction of ours can begin: engines, session makers, and functions that return
them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from inbox_outbox_base.errors.blame import OWN, SOURCE
from inbox_outbox_base.errors.inbox import InvalidOption, UnusableConnection

from .connect import connected, reaching, root

if TYPE_CHECKING:  # without greenlet the import fails
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker

    AS = TypeVar("AS", bound=AsyncSession)
    AsyncEngineSource = AsyncEngine | Callable[[], AsyncEngine]
    _AsyncMaker = async_sessionmaker[AS] | async_scoped_session[AS]
    AsyncSessionSource = _AsyncMaker[AS] | Callable[[], _AsyncMaker[AS]]
    AsyncSource = AsyncEngine | _AsyncMaker[Any] | Callable[[], AsyncEngine | _AsyncMaker[Any]]

S = TypeVar("S", bound=Session)
EngineSource = Engine | Callable[[], Engine]
"""What makes Connections."""
_Maker = sessionmaker[S] | scoped_session[S]
SessionSource = _Maker[S] | Callable[[], _Maker[S]]
"""What makes Sessions."""
Source = Engine | _Maker[Any] | Callable[[], Engine | _Maker[Any]]
"""What makes either."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """The classes of sources, for synchronous or for asynchronous code."""

    engine: type[Any]
    maker: type[Any]
    scoped: type[Any]

    def __contains__(self, source: object) -> bool:
        return isinstance(source, (self.engine, self.maker, self.scoped))

    def __str__(self) -> str:
        return f"an {self.engine.__name__}, {self.maker.__name__} or {self.scoped.__name__}"


SYNC = Kinds(Engine, sessionmaker, scoped_session)


@cache
def async_kinds() -> Kinds:
    """Imported on first use: without greenlet the import fails."""
    from sqlalchemy.ext.asyncio import AsyncEngine, async_scoped_session, async_sessionmaker

    return Kinds(AsyncEngine, async_sessionmaker, async_scoped_session)


def check_source(source: object, kinds: Kinds) -> None:
    """Refuse anything that is certainly not a source, before the first message.

    Raises:
        InvalidOption: neither of these kinds nor a function.
    """
    if source not in kinds and not _is_function(source):
        raise InvalidOption(f"source={_name(source)}: expected {kinds}, or a function that returns one")


def open_source(source: Any, kinds: Kinds) -> Any:
    """A Connection or a Session (of these kinds), to be used in a `with`; `connect.begin` begins its
    transaction.

    Raises:
        InvalidOption: not a source.
        UnusableConnection: the function returns no source (yet), or the scoped session of this thread or task
            is in a transaction already.
    """
    if source not in kinds:
        check_source(source, kinds)
        with SOURCE:
            returned = source()
        with OWN:
            source = _returned(returned, kinds)
    with OWN, reaching():
        if isinstance(source, kinds.engine):
            # An engine with options of its own sends statements when it connects.
            has_options = isinstance(source, Engine) and root(source) is not source
            return connected(source) if has_options else source.connect()
        return source() if isinstance(source, kinds.maker) else _idle(source())


def _returned(source: Any, kinds: Kinds) -> Any:
    if source in kinds:
        return source
    # Not InvalidOption, with which a listener gives up the message: the engine may be there soon.
    raise UnusableConnection(f"source: the function returned {_name(source)}, expected {kinds}")


def _idle(session: Any) -> Any:
    if session.in_transaction():
        raise UnusableConnection(
            "the scoped session is in a transaction already: commit or roll it back first, or join it with "
            "accept() or take()"
        )
    return session


def _is_function(source: object) -> bool:
    """Whether it is a function, not a session maker of the other kind: these can be called, too."""
    is_one = callable(source) and not inspect.isclass(source) and not inspect.iscoroutinefunction(source)
    return is_one and not type(source).__module__.startswith("sqlalchemy.")


def _name(source: object) -> str:
    return "None" if source is None else type(source).__name__
