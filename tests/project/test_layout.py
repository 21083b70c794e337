"""docs/layout.md describes the repository correctly."""

import ast
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import grimp
import pytest

from inbox_outbox_base.supported import FOLDERS, part
from tests.support.program import ROOT

PAGE = (ROOT / "docs" / "layout.md").read_text()
FILES = sorted({found for found in re.findall(r"`([a-z_/]+\.py)`", PAGE) if "/" in found})
CONTRACTS = [
    *(
        (name, f"{folder}.{name}")
        for name, folder in re.findall(r"^\| `(\w+)\.py` \| `(\w+)/\1\.py`", PAGE, re.MULTILINE)
    ),
    *((name.lower(), "dialect") for name in re.findall(r"\(`([A-Z]\w+)`\)", PAGE)),
]
FUNCTIONS = re.findall(r"`([a-z_/]+\.py)`: `(?:(\w+)\.)?(\w+)`", PAGE)


def test_every_file_is_there() -> None:
    """Each file that the page names exists, at the top level or in the shared package."""
    assert FILES
    places = (ROOT, ROOT / "inbox_outbox_base")
    assert not [file for file in FILES if not any((place / file).exists() for place in places)]


def test_every_function_is_there() -> None:
    """Each function that the page's two walks name is in its file, and so is its class."""
    assert FUNCTIONS
    for file, owner, function in FUNCTIONS:
        text = (ROOT / file).read_text()
        assert f"def {function}(" in text, file
        assert not owner or f"class {owner}" in text, file


def test_every_folder_is_described() -> None:
    """The tables name each package of the library, and each folder in the shared package."""
    packages = [path.parent for path in ROOT.glob("*/__init__.py")]
    inner = [path.parent for path in ROOT.glob("inbox_outbox_base/*/__init__.py")]
    assert not [path.name for path in [*packages, *inner] if f"`{path.name}/`" not in PAGE]


def test_every_folder_of_tests_is_described() -> None:
    """The table of tests names each folder of tests/."""
    section = PAGE.split("## Which tests\n")[1].split("\n## ")[0]
    folders = [path.parent.name for path in ROOT.glob("tests/*/__init__.py")]
    assert folders
    assert not [name for name in folders if f"`{name}/`" not in section]


@pytest.mark.parametrize("dialect", FOLDERS)
def test_every_database_implements_the_contracts(dialect: str) -> None:
    """Each database implements the contracts that the page names, in the files that it names."""
    assert len(CONTRACTS) > 2
    for contract, module in CONTRACTS:
        if contract == "notifying" and not part("relaying", dialect).has_notifications:
            continue
        if contract == "partitioning" and not part("migrating", dialect).has_partitions:
            continue
        whole = getattr(import_module(f"inbox_outbox_base.{module}"), contract.capitalize())
        assert issubclass(part(contract, dialect), whole), contract


LIBRARY = ("inbox", "inbox_outbox", "inbox_outbox_base", "outbox", "spark")
TWICE = {
    "InvalidOption",
    "Message",
    "MessageNotFound",
    "NotAwaited",
    "TablesMissing",
    "TransactionEnded",
    "UnsafeDatabase",
    "UnusableConnection",
}
"""Public names that the inbox and the outbox both have."""
MOST_ROOMS = 25
"""The inbox has a public module for each broker and framework."""
BASE_OF_ONE = {
    "checks.backoff",
    "checks.results",
    "databases.arrow",
    "errors.not_taken",
    "monitoring.log",
    "transactions.ending",
    "transactions.forked",
    "transactions.sources",
}
"""Modules of the base that one package alone reaches, because they belong to what stands beside them."""


def test_a_class_name_means_one_thing() -> None:
    """No two classes of the library have the same name, except public ones of the inbox and the outbox."""
    files = [file for package in LIBRARY for file in (ROOT / package).rglob("*.py")]
    names = Counter(
        name for file in files for name in re.findall(r"^class (\w+)", file.read_text(), re.MULTILINE)
    )
    assert {name for name, number in names.items() if number > 1} == TWICE


def test_no_folder_is_crowded() -> None:
    """Every folder of the library has at most 25 modules and folders directly in it, without the names that
    users import."""
    folders = [page.parent for package in LIBRARY for page in (ROOT / package).rglob("__init__.py")]
    rooms = {
        str(folder): [
            each
            for each in folder.iterdir()
            if (each.suffix == ".py" or (each / "__init__.py").exists())
            and (each.name.startswith("_") or folder.name not in LIBRARY)
        ]
        for folder in folders
    }
    assert {folder: len(found) - 1 for folder, found in rooms.items() if len(found) - 1 > MOST_ROOMS} == {}


def test_the_base_is_shared() -> None:
    """At least two packages reach each module of the base, through the base alone."""
    base = "inbox_outbox_base."
    graph = grimp.build_graph(*LIBRARY)
    reached = Counter[str]()
    for package in set(LIBRARY) - {"inbox_outbox_base"}:
        seen: set[str] = set()
        ahead = {module for module in graph.modules if module.startswith(f"{package}.")} | {package}
        while ahead:
            found = {each for module in ahead for each in graph.find_modules_directly_imported_by(module)}
            ahead = {each for each in found if each.startswith(base)} - seen
            seen |= ahead
        reached.update(seen)
    assert {name.removeprefix(base) for name, number in reached.items() if number == 1} == BASE_OF_ONE


def test_only_its_folder_knows_a_database() -> None:
    """Outside the databases' folders and the list of supported databases, no code uses a database's name or
    imports a dialect; except the fault kit, which may import neither."""
    packages = [path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name not in BESIDE]
    files = [file for package in [*packages, ROOT / "migrations"] for file in package.rglob("*.py")]
    theirs = {ROOT / "inbox_outbox_base" / "databases", ROOT / "inbox_outbox" / "faults"}
    ours = [file for file in files if not theirs & {*file.parents} and file.name != "supported.py"]
    assert len(ours) > len(files) / 2
    assert not [f"{file}: {name}" for file in ours for name in _databases(file)]


BESIDE = ("tests", "examples", "benchmarks")


def _databases(file: Path) -> list[str]:
    """The database names and dialects that a module uses."""
    nodes = [*ast.walk(ast.parse(file.read_text()))]
    names = [node.value for node in nodes if isinstance(node, ast.Constant) and node.value in FOLDERS]
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return [*names, *(module for module in modules if module.startswith("sqlalchemy.dialects"))]
