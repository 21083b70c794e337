"""The libraries that are measured side by side, each on its own database."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version

from sqlalchemy import Engine

from ._outbox_faststream import FastStream
from ._outbox_lab import OutboxLab, settle
from ._outbox_ours import Ours
from ._outbox_peer import Peer
from ._outbox_pgqueuer import PgQueuer
from ._outbox_procrastinate import Procrastinate

OURS = "inbox-outbox"
LIBRARIES: Mapping[str, type[Peer]] = {
    OURS: Ours,
    "pgqueuer": PgQueuer,
    "procrastinate": Procrastinate,
    "faststream-outbox": FastStream,
}


@contextmanager
def databases(lab: OutboxLab, prefix: str) -> Iterator[dict[str, Engine]]:
    """A database for each, with its tables."""
    with ExitStack() as stack:
        engines = {}
        for name, library in LIBRARIES.items():
            engines[name] = stack.enter_context(lab.lab.database(f"{prefix}_{name}"))
            library(engines[name].url).create()
        yield engines


def left_alone(engine: Engine) -> None:
    """`settle`, and close our connections, so that none is open while others are timed."""
    settle(engine)
    engine.dispose()


def titled(name: str) -> str:
    """A library with its version."""
    return f"{name} {version(name)}"
