"""The code of docs/frameworks.md runs where the frameworks are."""

from pathlib import Path

import pytest

from tests.support.documented_code import blocks, reader
from tests.support.program import ROOT

PAGE = ROOT / "docs" / "frameworks.md"
NAMES = ("celery", "django", "faststream")


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block runs after the blocks before it. They connect to nothing."""
    for name in NAMES:
        pytest.importorskip(name, reason=f"{name} is not installed here: make frameworks")
    monkeypatch.chdir(tmp_path)
    names = reader(tmp_path)
    for block in blocks(PAGE):
        block.run(names, "frameworks")
