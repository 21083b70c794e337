"""The documentation site."""

import subprocess
import sys
from pathlib import Path

from tests.support.program import ROOT


def test_the_site_is_built_without_a_mistake() -> None:
    """Each link leads somewhere, each page is in the navigation, each public name has a docstring, and each
    docstring fits its signature."""
    done = subprocess.run(
        [sys.executable, "-m", "docs.build"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reference = Path(done.stdout.strip()).with_name("reference")
    assert "Takes each message once" in (reference / "inbox.html").read_text()
    assert "inbox-outbox outbox relay" in (reference / "commands.html").read_text()
