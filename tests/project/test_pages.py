"""The links in the Markdown pages are valid, and the tests that these pages name exist."""

import re
from pathlib import Path

from inbox_outbox.web import _app
from tests.support.documented_code import PAGES
from tests.support.program import ROOT

ALL_PAGES = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
TEST = re.compile(r"[\w/]*\btest_\w+\.py")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(page.read_text())
    }


def test_every_link_leads_somewhere() -> None:
    """The target file of each link exists, and so does its heading, if the link names one."""
    links = [(page, *link) for page in ALL_PAGES for link in LINK.findall(page.read_text())]
    for page, path, anchor in links:
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page}: {path}"
        assert not anchor or anchor in anchors(target), f"{page}: {path}#{anchor}"


def test_every_test_that_is_named_exists() -> None:
    """Each test file that a page names exists, and the name is unambiguous."""
    for page in ALL_PAGES:
        for each in TEST.findall(page.read_text()):
            found = list((ROOT / "tests").rglob(each.removeprefix("tests/")))
            assert len(found) == 1, f"{page}: {each}: {found}"


def test_readme_is_short() -> None:
    """It is read in one go."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_page_of_the_web_page_is_shown() -> None:
    """docs/web.md has a small picture of each page."""
    shown = (ROOT / "docs" / "web.md").read_text()
    for path in _app._PAGES:
        picture = ROOT / "docs" / f"web-{path[1:] or 'overview'}.png"
        assert f"({picture.name})" in shown
        assert picture.stat().st_size < 60_000
