"""Wheels of this project, built from a copy of its sources."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from .program import ROOT

_VERSION = Path("inbox_outbox_base", "version.py")


def build_wheel(folder: Path, version: str | None = None) -> Path:
    """Build the working tree's wheel in an empty folder, with another version number if one is given."""
    source, out = folder / "source", folder / "wheel"
    for name in ("inbox", "inbox_outbox", "inbox_outbox_base", "outbox", "spark", "migrations", "tests"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    if version is not None:
        line = f'__version__ = "{version}"'
        text, number = re.subn(r"(?m)^__version__ = .*$", line, (source / _VERSION).read_text())
        assert number == 1
        (source / _VERSION).write_text(text)
    _run("build", "--wheel", "--outdir", str(out), str(source))
    return next(out.glob("*.whl"))


def install(what: str, folder: Path) -> Path:
    """Install a wheel, or what a package index knows by this name, in a folder, without its dependencies: the
    programs that have the folder in PYTHONPATH use it."""
    _run("pip", "install", "--quiet", "--no-deps", "--target", str(folder), what)
    return folder


def _run(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
