"""The libraries that are measured side by side, each on its own database."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import version

from sqlalchemy import Engine

from ._measure import Grid, LeftOut, version_of
from ._outbox_lab import OutboxLab, settle
from ._outbox_ours import Ours
from ._outbox_peer import Peer

OURS = "inbox-outbox"
_OTHERS = {"pgqueuer": "PgQueuer", "procrastinate": "Procrastinate", "faststream-outbox": "FastStream"}


def libraries() -> tuple[dict[str, type[Peer]], list[Grid]]:
    """Ours and those of the others that are installed; a table of those that are not."""
    found: dict[str, type[Peer]] = {OURS: Ours}
    left_out = []
    for name, peer in _OTHERS.items():
        try:
            version_of(name)
        except LeftOut as reason:
            left_out.append([f"{reason}"])
        else:
            module = import_module(f"{__package__}._outbox_{name.removesuffix('-outbox')}")
            found[name] = getattr(module, peer)
    return found, [Grid("left out", ["reason"], left_out)] if left_out else []


@contextmanager
def databases(lab: OutboxLab, prefix: str, compared: dict[str, type[Peer]]) -> Iterator[dict[str, Engine]]:
    """A database for each, with its tables."""
    with ExitStack() as stack:
        engines = {}
        for name, library in compared.items():
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
