"""The command line `inbox-outbox` for operators. Needs the extra `cli`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> str:
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from inbox_outbox_base.version import (
            __version__,  # here: the fault kit imports nothing else of this project
        )

        return __version__
