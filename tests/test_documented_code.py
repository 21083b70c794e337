"""The code in README.md and docs/ runs."""

from pathlib import Path

import pytest

from tests.documented_code import FENCE, PAGES, blocks, reader


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block runs after those before it, on a database with our tables, and prints what the page says."""
    monkeypatch.chdir(tmp_path)
    names = reader(tmp_path)
    engine = names["engine"]
    for block in blocks(page):
        capsys.readouterr()
        block.run(names)
        assert block.output in (None, capsys.readouterr().out), f"{page.name}, line {block.line}"
    engine.dispose()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_python_block_is_overlooked(page: Path) -> None:
    """Whatever is fenced as Python in another way, such as indented, would not be run."""
    assert len(FENCE.findall(page.read_text())) == len(blocks(page))
