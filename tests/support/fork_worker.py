"""A worker whose handler forks, without leaving the child by os._exit: what daemonisers and terminals do.

    python -m tests.support.fork_worker URL SOURCE ENDING

prints the verdict of the parent, and what the child's block raised.
"""

import os
import sys
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from inbox import Inbox
from tests.support import accounts

KEY = "transfer-1"


def main(url: str, source: str, ending: str) -> None:
    """One delivery; both processes reach the end of the block, the child first."""
    engine, parent = create_engine(url), os.getpid()
    place: Any = sessionmaker(engine) if source == "session" else engine
    try:
        with Inbox("bookkeeping").transaction(place, KEY) as work:
            accounts.add(work.session if source == "session" else work.connection)
            if (child := os.fork()) == 0 and ending == "raises":
                sys.exit(0)
            if child:
                os.waitpid(child, 0)
    except BaseException as error:
        if os.getpid() == parent:
            raise
        print("child:", type(error).__name__, flush=True)
        raise SystemExit(0) from None
    print("parent:" if os.getpid() == parent else "child:", work.verdict)
    engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[1:])
