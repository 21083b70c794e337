"""The adapters in docs/adapters.md pass the conformance suites in the way that the page runs them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documented_code import PAGES, blocks
from tests.support.program import ROOT

CANNOT = """
from outbox.testing import PublisherSuite


class TestMine(PublisherSuite):
    cannot = {"test_it_is_a_publisher": "it has no words"}


class TestMisspelt(PublisherSuite):
    cannot = {"test_it_is_one": "it has no words"}
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder as a reader of the page would."""
    command = [sys.executable, "-m", "pytest", "-q", "-rsfE", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )


@pytest.mark.long
def test_the_adapters_of_the_guide(tmp_path: Path) -> None:
    """The page's code passes when put in one file; only tests of features that the page's adapters lack are
    skipped."""
    [page] = [page for page in PAGES if page.name == "adapters.md"]
    (tmp_path / "test_page.py").write_text("\n".join(block.code for block in blocks(page)))
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    for line in skipped:
        assert "does not define" in line or "it " in line, line


def test_what_an_adapter_cannot_do(tmp_path: Path) -> None:
    """A test listed in the adapter's `cannot` is skipped with the reason; a misspelt name is an error."""
    (tmp_path / "test_mine.py").write_text(CANNOT)
    done = run_pytest(tmp_path, "-k", "test_it_is_a_publisher")
    assert "TestMine cannot: it has no words" in done.stdout
    assert "cannot=['test_it_is_one']: there are no such tests" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert "1 skipped" in last
    assert "1 error" in last
