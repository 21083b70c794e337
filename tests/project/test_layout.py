"""docs/layout.md says where things are."""

import re

import pytest

from tests.support.program import ROOT

PAGE = (ROOT / "docs" / "layout.md").read_text()
FILES = sorted({found for found in re.findall(r"`([a-z_/]+\.py)`", PAGE) if "/" in found})
FUNCTIONS = re.findall(r"`([a-z_/]+\.py)`: `(?:(\w+)\.)?(\w+)`", PAGE)


@pytest.mark.parametrize("file", FILES)
def test_every_file_is_there(file: str) -> None:
    """Each file that the page names exists, at the top or in the shared package."""
    assert (ROOT / file).exists() or (ROOT / "inbox_outbox_base" / file).exists()


@pytest.mark.parametrize(("file", "owner", "function"), FUNCTIONS)
def test_every_function_is_there(file: str, owner: str, function: str) -> None:
    """Each function that the two walks name is in its file, and so is its class."""
    text = (ROOT / file).read_text()
    assert f"def {function}(" in text
    assert not owner or f"class {owner}" in text


def test_every_folder_is_described() -> None:
    """The tables name each package of the library, and each folder inside the shared one."""
    packages = [path.parent for path in ROOT.glob("*/__init__.py")]
    inner = [path.parent for path in ROOT.glob("inbox_outbox_base/*/__init__.py")]
    assert not [path.name for path in [*packages, *inner] if f"`{path.name}/`" not in PAGE]
