"""What a release says about itself. `make release` also asks for what only a release has."""

import re

import pytest

from inbox.schema import REVISION
from inbox_outbox import __version__
from tests.support.program import ROOT


def test_the_revision_of_this_version() -> None:
    """docs/versions.md has the newest revision of the tables beside this version."""
    minor = ".".join(__version__.split(".")[:2])
    assert f"\n| {minor} | {REVISION} |\n" in (ROOT / "docs" / "versions.md").read_text()


@pytest.mark.release
def test_the_address_of_the_repository() -> None:
    """No address is one that stands for another."""
    placed = ["pyproject.toml", "SECURITY.md", "README.md", "docs/build.py"]
    assert not [name for name in placed if "example.org/inbox-outbox" in (ROOT / name).read_text()]


@pytest.mark.release
def test_the_changelog() -> None:
    """The newest heading has this version and a date."""
    newest = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert re.fullmatch(rf"{re.escape(__version__)}, .*\d{{4}}-\d\d-\d\d.*", newest), newest
