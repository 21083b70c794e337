"""The code in README.md and docs/ runs."""

import re
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from outbox.rabbitmq import RabbitPublisher
from tests.support.brokers.kafka_topics import Topics
from tests.support.brokers.rabbit_queues import Queues
from tests.support.documented_code import (
    FENCE,
    FILE,
    PAGES,
    Block,
    blocks,
    name,
    pages_that_need,
    reader,
    run_on_broker,
)
from tests.support.program import ROOT

pytest_plugins = ["tests.support.brokers.kafka_fixtures", "tests.support.brokers.rabbit_fixtures"]


# More than 24 items: each page is a story of its own, and its failure should not hide another's.
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block of a page that needs no broker runs after the blocks before it, on a database with the
    tables, and prints what the page says."""
    monkeypatch.chdir(tmp_path)
    names = reader(tmp_path)
    for block in blocks(page):
        capsys.readouterr()
        block.run(names)
        assert block.output in (None, capsys.readouterr().out), f"{page.name}, line {block.line}"


@pytest.mark.parametrize("page", pages_that_need("kafka"), ids=name)
def test_the_code_for_kafka_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: Topics
) -> None:
    """On Kafka, one block of a page publishes, the next one sends, and another one receives."""
    for topic in ("orders", "orders.dead"):
        topics.make(topic)
    run_on_broker(page, tmp_path, monkeypatch, "kafka", {"kafka:9092": topics.address})


@pytest.mark.parametrize("page", pages_that_need("rabbitmq"), ids=name)
def test_the_code_for_rabbitmq_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queues: Queues
) -> None:
    """On RabbitMQ, one block of a page publishes, the next one sends, and another one receives."""
    queues.make("orders")
    with ExitStack() as left:
        # A page leaves its publishers open; their client would print a message when the broker stops.
        monkeypatch.setattr(
            "outbox.rabbitmq.RabbitPublisher", lambda url: left.enter_context(closing(RabbitPublisher(url)))
        )
        run_on_broker(page, tmp_path, monkeypatch, "rabbitmq", {"amqp://guest:guest@rabbitmq/": queues.url})


def test_the_first_program_runs_as_it_is(tmp_path: Path) -> None:
    """README's first program has at most 25 lines, prints what README says, and finds only duplicates when it
    runs again, as README also says."""
    program = blocks(PAGES[0])[0]
    assert len(program.code.splitlines()) <= 25
    assert printed(program, tmp_path) == program.output
    assert printed(program, tmp_path) == (program.output or "").replace("NEW", "DUPLICATE")


def printed(program: Block, folder: Path) -> str:
    """The output of a block that runs as its own program."""
    (folder / "shop.py").write_text(program.code)
    unclosed = "ignore:unclosed database in <sqlite3:ResourceWarning"  # the program disposes of no engine
    command = [sys.executable, "-W", "error", "-W", unclosed, "shop.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


def test_the_service_is_the_one_in_the_examples() -> None:
    """The start shows parts of the service's files as they are; dots stand for lines that are left out."""
    (start,) = (page for page in PAGES if page.name == "start.md")
    shown = [block.code.split("\n", 1) for block in blocks(start) if FILE.match(block.code)]
    assert len(shown) == 3
    for first, code in shown:
        (file,) = (ROOT / "examples/service").rglob(first.removeprefix("# "))
        for part in re.split(r"^ *\.\.\.\n", code, flags=re.MULTILINE):
            assert part in file.read_text(), first


def test_no_python_block_is_overlooked() -> None:
    """Every Python block is found: one that is fenced differently, for example indented, would not be run."""
    for page in PAGES:
        assert len(FENCE.findall(page.read_text())) == len(blocks(page)), page
