"""For the tests of docs/moving.md: the code of its pages, and messages for several versions of a program."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Engine

from inbox import Outcome, Verdict
from tests.support import accounts
from tests.support.documented_code import blocks
from tests.support.program import ROOT
from tests.support.together import Broker

WORKERS = 6
GUARD = '    if connection.execute(text(OLD), {"id": message["id"]}).rowcount:  # not in step 3\n    '
NEW = (GUARD, "")
"""Step 3: the handler without the old guard."""


class Pages:
    """The namespace of a reader whose orders are accounts: a second effect makes a total of two."""

    def __init__(self, engine: Engine) -> None:
        self.names: dict[str, Any] = {
            "engine": engine,
            "insert_order": accounts.add,
            "app": SimpleNamespace(task=lambda body: body),
        }

    def run(self, marker: str, *changes: tuple[str, str], page: str = "moving.md") -> Any:
        """Run the block of a page that contains this text, changed as a reader would; return `bill`, if there
        is one by now."""
        [block] = [block for block in blocks(ROOT / "docs" / page) if marker in block.code]
        code = block.code
        for written, instead in changes:
            assert written in code
            code = code.replace(written, instead)
        exec(compile("\n" * (block.line - 1) + code, block.page, "exec"), self.names)  # noqa: S102
        return self.names.get("bill")


def orders(keys: Iterable[str], copies: int = 1) -> list[dict[str, str]]:
    """Messages with these keys, each so many times, far from each other."""
    return [{"id": key} for _ in range(copies) for key in keys]


def deliver(messages: Iterable[dict[str, str]], *versions: Callable[[Any], Any]) -> None:
    """Deliver to workers of these versions of a program, which take turns."""
    turns = itertools.cycle(versions)
    Broker(messages).deliver(lambda message: next(turns)(message) or Outcome(Verdict.NEW), WORKERS)


def assert_once(engine: Engine, keys: Iterable[str]) -> None:
    """Exactly these orders have taken effect, each once."""
    assert Counter(accounts.totals(engine)) - Counter() == Counter(keys)
