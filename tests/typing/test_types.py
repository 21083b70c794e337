"""The types of the public names: a project that uses them is checked as its authors would check it."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.program import ROOT

SHOP = Path(__file__).parent / "shop"
MARK = re.compile(r"# E: (?P<mypy>[a-z-]+), (?P<pyright>\w+)$")

Errors = dict[str, set[str]]
"""The codes of the errors of a line, by file and number."""


def test_mypy() -> None:
    """mypy in strict mode refuses the lines that are marked, for the reason that they name, and no others."""
    command = [sys.executable, "-m", "mypy", "--output", "json", *map(str, SHOP.glob("*.py"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found: Errors = defaultdict(set)
    for line in done.stdout.splitlines():
        error = json.loads(line)
        found[f"{Path(error['file']).name}:{error['line']}"].add(error["code"])
    assert found, done.stderr
    compare(found, expected("mypy"))


@pytest.mark.long
@pytest.mark.skipif(find_spec("pyright") is None, reason="`make types` installs pyright")
def test_pyright() -> None:
    """So does pyright in strict mode."""
    command = [sys.executable, "-m", "pyright", "--project", str(SHOP.parent), "--outputjson"]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: Errors = defaultdict(set)
    for error in json.loads(done.stdout)["generalDiagnostics"]:
        line = error["range"]["start"]["line"] + 1
        found[f"{Path(error['file']).name}:{line}"].add(error["rule"])
    compare(found, expected("pyright"))


def expected(checker: str) -> dict[str, str]:
    """The code at each marked line."""
    marks = {}
    for file in SHOP.glob("*.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if "# E:" in line:
                mark = MARK.search(line)
                assert mark, f"{file.name}:{number}: not a mark"
                marks[f"{file.name}:{number}"] = mark[checker]
    return marks


def compare(found: Errors, marks: dict[str, str]) -> None:
    """Fail if an error has no mark, or a mark no such error."""
    wrong = {place: codes for place, codes in found.items() if marks.get(place) not in codes}
    assert wrong == {}
    assert set(marks) - set(found) == set()
