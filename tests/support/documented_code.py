"""The Python blocks of README.md and docs/, and the names that a reader is expected to have.

The blocks of a page run one after another, in one namespace. A comment before a block says that it `needs
kafka`, `nats`, `rabbitmq`, `redis`, `rocketmq`, `spark`, `sqs` or `webhook`: then it runs with the address of
a real one in place of the page's. What `needs frameworks` runs only where they are installed, in
tests/frameworks. Or the comment says `not run: reason`: then only the block's imports run. If a `text` block
follows, it is the expected output.
"""

import ast
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Table, create_engine, func, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from inbox import Outcome, SqlStore, Verdict
from inbox.schema import tables
from outbox import DirectDelivery
from tests.support.database import make_tables
from tests.support.program import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^ *(```|~~~) *py", re.MULTILINE)
BLOCK = re.compile(
    r"(?:^<!-- (?:not run: (?P<reason>[^\n]+)"
    r"|needs (?P<service>frameworks|kafka|nats|rabbitmq|redis|rocketmq|spark|sqs|webhook)) -->\n)?"
    r"^```python\n(?P<code>.*?)^```$"
    r"(?:\n+^```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
RUNS = re.compile(r"\.run\(\)|stopping_on_sigterm")
"""What ends at SIGTERM only."""
FILE = re.compile(r"# \w+\.py\n")
"""The first line of a file of the reader's. A test of its own runs it."""
LIMIT = 60
"""Seconds for a block."""
TABLES = tables()


@dataclass(frozen=True, slots=True)
class Block:
    """A block of Python, with its page and the number of its first line."""

    page: Path
    line: int
    code: str
    not_run: str | None
    service: str
    output: str | None

    def run(
        self, names: dict[str, Any], service: str = "", addresses: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Run it in a namespace, if it needs nothing or needs this service, whose address replaces the
        page's. A traceback names the page and the line."""
        code = self.code
        if FILE.match(code) or self.service == "frameworks" != service:
            return
        if self.not_run or self.service not in ("", service):
            code = imports(code)
        for written, real in addresses.items():
            code = code.replace(written, real)
        waits = RUNS.search(code)
        with bounded(), stopped(self._is_done(names["engine"])) if waits else nullcontext():
            exec(compile("\n" * (self.line - 1) + code, self.page, "exec"), names)  # noqa: S102  our own pages

    def _is_done(self, engine: Engine) -> Callable[[], bool]:
        taken = rows(engine, TABLES.message)

        def is_done() -> bool:
            is_taken = "Consumer(" not in self.code or rows(engine, TABLES.message) > taken
            return is_taken and not rows(engine, TABLES.outbox.message)

        return is_done


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, each.start("code")) + 1,
            each["code"],
            each["reason"],
            each["service"] or "",
            each["output"],
        )
        for each in BLOCK.finditer(text)
    ]


def name(page: Path) -> str:
    """The name of a page's test."""
    return page.name


def pages_that_need(service: str) -> list[Path]:
    """The pages with blocks that need this service."""
    return [page for page in PAGES if any(block.service == service for block in blocks(page))]


def run_on_broker(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, broker: str, addresses: Mapping[str, str]
) -> None:
    """Run the blocks of a page; no message is left in the outbox."""
    monkeypatch.chdir(folder)
    names = reader(folder)
    for block in blocks(page):
        block.run(names, broker, addresses)
    assert not rows(names["engine"], TABLES.outbox.message)


def rows(engine: Engine, table: Table) -> int:
    """The number of rows in a table."""
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def imports(code: str) -> str:
    """The imports of a block, at their own line numbers."""
    lines = [""] * len(code.splitlines())
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines[node.lineno - 1] = ast.unparse(node)
    return "\n".join(lines)


@contextmanager
def bounded() -> Iterator[None]:
    """Raise an error in the block if it has not ended within `LIMIT` seconds."""

    def end(*_: object) -> None:
        raise AssertionError(f"it has not ended within {LIMIT} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def stopped(is_done: Callable[[], bool]) -> Iterator[None]:
    """Send SIGTERM to the program that runs in the block when it is done, and every three seconds until it
    has ended."""
    over = threading.Event()

    def ask() -> None:
        pause = 1
        while not over.wait(pause):
            if is_done():
                os.kill(os.getpid(), signal.SIGTERM)
                pause = 3

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # before it listens, and after
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()
        signal.signal(signal.SIGTERM, before)


class Base(DeclarativeBase):
    """The reader's models."""


class Order(Base):
    """One of them."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[str]


def reader(folder: Path) -> dict[str, Any]:
    """The names that the reader of a page has: an engine, messages, business functions."""
    engine = create_engine(f"sqlite:///{folder / 'shop.db'}")
    make_tables(engine.url)
    Base.metadata.create_all(engine)
    return {
        "__name__": "__main__",
        "engine": engine,
        "app": SimpleNamespace(engine=engine),
        "store": SqlStore(engine),
        "message": {"order_id": "order-42", "amount": 5},
        "batch": [{"order_id": "order-42"}, {"order_id": "order-43"}],
        "Base": Base,
        "Order": Order,
        **business(engine),
    }


def business(engine: Engine) -> dict[str, Any]:
    """The reader's own functions."""

    def insert_order(connection: Connection, number: str = "order-42") -> None:
        connection.execute(insert(Order).values(number=number))

    def handler(message: object) -> Outcome:
        return Outcome(Verdict.NEW)

    def fetch(timeout: float) -> list[dict[str, str]]:
        time.sleep(timeout / 10)
        return [{"order_id": "order-44"}]

    return {
        "insert_order": insert_order,
        "lock_stock": lambda key=None: {"lock": key},
        "release_stock": lambda lock: None,
        "charge": lambda: {"payment": 7},
        "handler": handler,
        "fetch": fetch,
        "put_away": lambda message, decision: None,
        "publisher": DirectDelivery({"orders": handler}),
    }
