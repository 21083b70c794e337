"""docs/faults.md: its files run, and pytest says what the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.support.database import Database
from tests.support.documented_code import blocks
from tests.support.program import ROOT

PAGE = ROOT / "docs" / "faults.md"
HANDLER, TEST, RIGHT = (each.code for each in blocks(PAGE) if each.code.startswith("# "))
OUTPUTS = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the page's handler and its test."""
    (tmp_path / "shop.py").write_text(HANDLER)
    (tmp_path / "shop_test.py").write_text(TEST)
    return tmp_path


def run(folder: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as a reader would, with the plugin whether or not it is installed."""
    plugin = ("-p", "no:inbox-outbox", "-p", "inbox_outbox._pytest_plugin")
    quiet = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--rootdir", str(folder))
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *quiet, *options, str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SHOP_URL": url},
    )


def test_what_the_page_shows(postgres: Database, folder: Path) -> None:
    """The handler of the page has the bugs that its table shows, at these lines; they are also in the JSON
    file and in pytest's own JUnit file."""
    url = _shop(postgres)
    files = ("--exactly-once-json=all.json", "--junitxml=j.xml")
    said = run(folder, url, "--exactly-once", "--exactly-once-seed=7", *files)
    assert said.returncode == 1
    assert _report(said.stdout) == _report(OUTPUTS[0]), said.stdout
    [report] = json.loads((folder / "all.json").read_text())
    assert len(report["violations"]) == 7
    assert report["test"] == "shop_test.py::test_bill"
    assert "exactly_once" in (folder / "j.xml").read_text()


@pytest.mark.long
def test_the_repaired_handler(postgres: Database, folder: Path) -> None:
    """The page's second handler passes."""
    (folder / "shop.py").write_text(RIGHT)
    file = folder / "shop_test.py"
    both = "cents FROM bill UNION ALL SELECT key, 1 FROM outbox_message"
    file.write_text(file.read_text().replace("cents FROM bill", both))
    said = run(folder, _shop(postgres), "--exactly-once", "--exactly-once-seed=7")
    assert said.returncode == 0, said.stdout
    assert OUTPUTS[1].strip() in said.stdout


def test_without_the_option(folder: Path) -> None:
    """The test is skipped, and says why; the plugin has loaded nothing but itself and its
    fixtures."""
    (folder / "conftest.py").write_text(
        "import sys\n\ndef pytest_unconfigure():\n"
        "    print(sorted(name for name in sys.modules if name.startswith(('inbox', 'outbox', 'sqla'))))\n"
    )
    (folder / "shop_test.py").write_text("def test_bill(exactly_once):\n    exactly_once()\n")
    said = run(folder, "", "-rs")
    assert said.returncode == 0, said.stdout
    assert "it runs with --exactly-once" in said.stdout
    ours = ["inbox_outbox", "inbox_outbox._pytest_plugin", "inbox_outbox.testing"]
    assert said.stdout.splitlines()[-1] == str([*ours, "inbox_outbox.testing._fixtures"])


def _shop(database: Database) -> str:
    with database.engine().begin() as connection:
        connection.execute(text("CREATE TABLE bill (id TEXT, cents INTEGER)"))
    return database.url.set(drivername="postgresql").render_as_string(hide_password=False)


def _report(said: str) -> list[str]:
    """The report, without the time that it took. Where CI is set, pytest repeats it in its summary."""
    said, _, _ = said.partition("short test summary")
    lines = [re.sub(r" in \d+\.\d s$", "", line) for line in said.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("shop_test:bill on"))
    end = max(number for number, line in enumerate(lines) if line.startswith("not tried"))
    return lines[start : end + 1]
