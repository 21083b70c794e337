"""How to connect to a database: its driver, and what its URLs may contain."""

from functools import cache

from inbox_outbox_base.dialect import Connecting
from inbox_outbox_base.supported import FOLDERS, part


@cache
def connecting(dialect: str) -> Connecting:
    """How to connect to a supported database."""
    return part("connecting", dialect)()  # type: ignore[no-any-return]


@cache
def drivers() -> dict[str, str]:
    """By a database's bare name in a URL, its name with our driver."""
    return {
        name: f"{dialect}+{connecting(dialect).driver}"
        for dialect in FOLDERS
        for name in (dialect, *connecting(dialect).aliases)
        if not connecting(dialect).is_default
    }
