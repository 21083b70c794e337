"""The second try of `make test`."""

import sys
from pathlib import Path

from tests.support.program import run

TESTS = """
from pathlib import Path

def test_steady():
    pass

def test_broken():
    assert False

def test_racy():
    mark = Path(__file__).with_name("mark")
    was_there = mark.exists()
    mark.touch()
    assert was_there
"""


def test_the_second_try_names_what_it_rescued(tmp_path: Path) -> None:
    """A test that failed and passes when it is run once more is named at the end; no other test is."""
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.rescued", f"--rootdir={tmp_path}"]
    first = run([*command, str(tmp_path)])
    assert (first.returncode, "once more" in first.stdout) == (1, False), first.stdout
    second = run([*command, "--last-failed", str(tmp_path)])
    said = "1 test passed only when run once more:\n  test_some.py::test_racy\n"
    assert second.returncode == 1
    assert said in second.stdout
    assert second.stdout.count("passed only") == 1
