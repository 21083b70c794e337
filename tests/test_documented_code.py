"""The code in README.md and docs/ runs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiormq.abc import AbstractChannel

from tests.documented_code import FENCE, PAGES, TABLES, Block, blocks, reader, rows
from tests.kafka_topics import Topics
from tests.rabbit_queues import Queues

pytest_plugins = ["tests.kafka_fixtures", "tests.rabbit_fixtures"]

ON_BROKERS = {page: brokers for page in PAGES if (brokers := {each.broker for each in blocks(page)} - {""})}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block that needs no broker runs after those before it, on a database with our tables, and prints
    what the page says."""
    monkeypatch.chdir(tmp_path)
    names = reader(tmp_path)
    for block in blocks(page):
        capsys.readouterr()
        block.run(names)
        assert block.output in (None, capsys.readouterr().out), f"{page.name}, line {block.line}"


@pytest.mark.parametrize("page", ON_BROKERS, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_on_brokers(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """All blocks of a page run on real brokers: what one publishes, another one sends, and a third takes."""
    monkeypatch.chdir(tmp_path)
    names = reader(tmp_path)
    addresses = {broker: request.getfixturevalue(f"{broker}_address") for broker in ON_BROKERS[page]}
    for block in blocks(page):
        block.run(names, addresses)
    assert not rows(names["engine"], TABLES.outbox.message)


@pytest.fixture
def kafka_address(topics: Topics) -> str:
    """A broker with the topics of the pages."""
    for name in ("orders", "orders.dead"):
        topics.make(name)
    return topics.address


@pytest.fixture
def rabbitmq_address(queues: Queues) -> Iterator[str]:
    """A broker with the queue of the pages."""

    async def make(channel: AbstractChannel) -> None:
        await channel.queue_declare("orders", durable=True)

    async def delete(channel: AbstractChannel) -> None:
        await channel.queue_delete("orders")

    queues.do(make)
    yield queues.url
    queues.do(delete)


def test_the_first_program_runs_as_it_is(tmp_path: Path) -> None:
    """README's first program has 25 lines at most, prints what README says, and the second time, as README
    says too, takes nothing again."""
    program = blocks(PAGES[0])[0]
    assert len(program.code.splitlines()) <= 25
    assert printed(program, tmp_path) == program.output
    assert printed(program, tmp_path) == (program.output or "").replace("NEW", "DUPLICATE")


def printed(program: Block, folder: Path) -> str:
    """What a block prints as a program of its own."""
    (folder / "shop.py").write_text(program.code)
    command = [sys.executable, "-W", "error", "shop.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_python_block_is_overlooked(page: Path) -> None:
    """Whatever is fenced as Python in another way, such as indented, would not be run."""
    assert len(FENCE.findall(page.read_text())) == len(blocks(page))
