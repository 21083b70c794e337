"""The adapters of docs/adapters.md pass the suites as the page runs them."""

import subprocess
import sys
from pathlib import Path

from tests.support.documented_code import PAGES, blocks
from tests.support.program import ROOT


def test_the_adapters_of_the_guide(tmp_path: Path) -> None:
    """The page's code, in one file, passes; only what a folder cannot do is skipped."""
    [page] = [page for page in PAGES if page.name == "adapters.md"]
    (tmp_path / "test_page.py").write_text("\n".join(block.code for block in blocks(page)))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    for line in skipped:
        assert "does not define" in line or "it " in line, line
