"""`inbox-outbox doctor`: whose packages Python finds, and whether tables fit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from inbox.schema import REVISION, metadata
from inbox_outbox._exit import ILL
from inbox_outbox._installing import installed
from tests.support.cli import as_json, inbox_outbox, succeeded
from tests.support.database import Database
from tests.support.program import ROOT


def test_nothing_is_wrong(sqlite: Database) -> None:
    """With tables of this version."""
    assert "nothing is wrong" in succeeded(inbox_outbox("doctor", url=sqlite.url))


def test_tables_of_another_version(sqlite: Database) -> None:
    """It says what to do, and so does `check`; `migrate` leaves tables of a newer version alone."""
    for revision, todo in (
        ("0005", "run `inbox-outbox migrate`"),
        ("0099", "install the version that made them"),
    ):
        with sqlite.engine().begin() as connection:
            connection.execute(text(f"UPDATE inbox_outbox_version SET version_num = '{revision}'"))
        done = inbox_outbox("doctor", "--json", url=sqlite.url)
        assert done.returncode == ILL
        (found,) = json.loads(done.stdout)["complaints"]
        why = f"their revision is {revision}, this version is for {REVISION}: {todo}"
        assert found == {"about": "tables", "why": why.replace("`", "")}
        checked = as_json(inbox_outbox("check", "--json", url=sqlite.url))
        assert checked["is_safe"]
        for half in ("inbox", "outbox"):
            (said,) = (each for each in checked[half] if each["what"] == "revision of the tables")
            assert (said["result"], said["why"]) == ("said", why)
    assert "0099, unknown to this version" in inbox_outbox("migrate", url=sqlite.url).stderr


def test_tables_that_no_migration_has_made(sqlite: Database) -> None:
    """It tells tables that are not there from those of which no revision is known, as `migrate` does."""
    engine = sqlite.engine()
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM inbox_outbox_version"))
    done = inbox_outbox("doctor", url=sqlite.url)
    assert done.returncode == ILL
    assert "exist, but inbox_outbox_version names no revision" in done.stdout
    with engine.begin() as connection:
        metadata.drop_all(connection)
    assert (
        "there are none: create them with inbox-outbox migrate"
        in inbox_outbox("doctor", url=sqlite.url).stdout
    )


def test_a_folder_of_the_same_name(tmp_path: Path) -> None:
    """A folder `inbox` where the program starts hides ours: every command names it, not only this one."""
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "__init__.py").touch()
    for command in ("doctor", "top"):
        done = subprocess.run(
            [sys.executable, "-m", "inbox_outbox", command],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert str(tmp_path / "inbox") in done.stderr
        assert "Traceback" not in done.stderr


def test_a_file_that_another_distribution_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are named: pip overwrites files of others without a word."""
    for name, version in (("inbox_outbox", "0.1.0"), ("inbox", "0.2")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: {version}\n")
        (folder / "RECORD").write_text("inbox/__init__.py,sha256=AAAA,10\n")
    shutil.copytree(ROOT / "inbox" / "_probing", tmp_path / "inbox")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (found,) = installed.changed_files()
    assert found.about == "inbox/__init__.py"
    assert found.why.startswith("inbox has written one of this name")
