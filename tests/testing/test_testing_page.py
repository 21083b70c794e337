"""docs/testing.md."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.documented_code import blocks
from tests.support.program import ROOT


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    """The page's blocks are one test file, whose tests pass with the plugin."""
    code = [block.code for block in blocks(ROOT / "docs" / "testing.md")]
    (tmp_path / "test_page.py").write_text("\n".join(code))
    plugin = ["-p", "inbox_outbox._pytest_plugin", "-p", "no:cacheprovider", "-W", "error"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert f"{''.join(code).count('def test_')} passed" in done.stdout, done.stdout
