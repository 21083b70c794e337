"""What your own tests need: a database that forgets, what was published, deliveries, crashes, and time.

    with database() as engine, rolled_back(engine) as test:
        with test.sessions.begin() as session:
            place_order(session, "order-42")  # your code, which publishes
        assert [each.json() for each in published(test.connection, topic="orders")] == [{"order": 42}]

All of it runs in one process, on a real database. `inbox.testing` and `outbox.testing` are something else:
they test adapters for brokers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._aging import age
    from ._crashing import Crashed, NotCrashed, crash_at_commit, crash_at_statement
    from ._delivering import deliver_twice, delivery, envelope
    from ._isolating import EscapesRollback, RolledBack, database, emptied, rolled_back
    from ._published import PublishedMessage, published
    from ._publishers import AsyncRecordingPublisher, RecordingPublisher

__all__ = [
    "AsyncRecordingPublisher",
    "Crashed",
    "EscapesRollback",
    "NotCrashed",
    "PublishedMessage",
    "RecordingPublisher",
    "RolledBack",
    "age",
    "crash_at_commit",
    "crash_at_statement",
    "database",
    "deliver_twice",
    "delivery",
    "emptied",
    "envelope",
    "published",
    "rolled_back",
]

_PLACES = {
    "_aging": ("age",),
    "_crashing": ("Crashed", "NotCrashed", "crash_at_commit", "crash_at_statement"),
    "_delivering": ("deliver_twice", "delivery", "envelope"),
    "_isolating": ("EscapesRollback", "RolledBack", "database", "emptied", "rolled_back"),
    "_published": ("PublishedMessage", "published"),
    "_publishers": ("AsyncRecordingPublisher", "RecordingPublisher"),
}


if not TYPE_CHECKING:  # which would take any name for one of these

    def __getattr__(name: str) -> Any:
        """Imported on first use: pytest loads the plugin of this package in every run."""
        from importlib import import_module

        for module, names in _PLACES.items():
            if name in names:
                return getattr(import_module(f"{__name__}.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
