"""What a process remembers about a database: whose it is, and when it is no longer believed."""

from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Generic, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Pool, event

from inbox_outbox_base.databases.registry import database_of

T = TypeVar("T")
_numbers = count()

BELIEVED = 60.0
"""After so many seconds a value is read again: somebody may have changed it, or made its table anew."""


class Memories(Generic[T]):
    """An object for each pool. Engines with options of their own share a pool, and the database behind it.

    When a connection of the pool breaks, `forget` is called with the object: the next connection may lead to
    another server, or to an earlier state of the database. What is believed for long is better forgotten with
    every `connect`, too: some pools close their connections before they break.
    """

    def __init__(
        self,
        make: Callable[[], T],
        forget: Callable[[T], object],
        when: Sequence[str] = ("invalidate",),
    ) -> None:
        self._make = make
        self._forget = forget
        self._when = when
        self._name = f"_inbox_memory_{next(_numbers)}"
        """The attribute of pools that has it: cheaper for each message than a WeakKeyDictionary."""
        self._pools: WeakSet[Pool] = WeakSet()

    def of(self, pool: Pool) -> T:
        """The pool's object."""
        found: T | None = vars(pool).get(self._name)
        if found is None:
            made = self._make()
            found = vars(pool).setdefault(self._name, made)
            if found is made:  # not by another thread
                self._pools.add(pool)
                for each in self._when:
                    event.listen(pool, each, lambda *_: self._forget(made))
        return found

    def forget_all(self) -> None:
        """Call `forget` for all pools."""
        for pool in list(self._pools):
            self._forget(self.of(pool))


_by_role: Memories[set[Hashable]] = Memories(set, set.clear)
"""The places where the role decides, too."""
_asks_for_role: list[bool] = []
"""Not empty once there is one."""


def ask_for_role(connection: Connection) -> None:
    """From now on, ask for the role in this place: it decides to which table a name leads, and no connection
    tells that `SET ROLE` has changed it."""
    _by_role.of(connection.engine.pool).add(database_of(connection).place(connection))
    _asks_for_role[:] = [True]


def tenant_of(connection: Connection) -> Hashable:
    """Where the names of tables lead, as far as the connection tells: by its server, its database, its search
    path and its map of schemas; by its role, if that was found to decide and a transaction can ask for it."""
    translated = connection.get_execution_options().get("schema_translate_map")
    database = database_of(connection)
    place = database.place(connection)
    if _asks_for_role and place in _by_role.of(connection.engine.pool) and connection.in_transaction():
        place = place, database.role(connection)
    return (frozenset(translated.items()), place) if translated else place
