"""Looks at the installation: whose packages Python finds, and whether their files are as they were installed.

It imports none of our packages: one of them may be somebody else's.
"""

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution, distributions
from pathlib import Path

NAME = "inbox-outbox"
PACKAGES = ("inbox", "inbox_outbox", "inbox_outbox_base", "outbox", "spark")
_HERE = Path(__file__).resolve().parents[2]
"""Where our packages are: this module is certainly ours."""
_AGAIN = f"install {NAME} again, with pip's --force-reinstall"
_MOST = 5
"""Files that are named."""


@dataclass(frozen=True, slots=True)
class InstallationFault:
    """Something about the installation that needs somebody."""

    about: str
    """A package, a file, the tables."""
    why: str
    """What is wrong, and what to do."""


def foreign_packages() -> Iterator[InstallationFault]:
    """Packages that Python finds instead of ours."""
    for name in PACKAGES:
        spec = PathFinder.find_spec(name)
        folders = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        found = next((Path(each).resolve() for each in folders if each), None)
        if found is None:
            yield InstallationFault(name, f"it is not there: {_AGAIN}")
        elif _HERE / name not in (found, *found.parents):
            yield InstallationFault(name, f"Python finds {_whose(name, found)} instead of ours in {_HERE}")


def _whose(name: str, found: Path) -> str:
    """Whose package it is, with what to do."""
    for each in distributions():
        if each.name != NAME and any(file.parts[0] in (name, f"{name}.py") for file in each.files or ()):
            return f"{found}, which belongs to the distribution {each.name} (do not install both)"
    return f"{found} (rename that folder or file, or start the program elsewhere)"


def changed_files() -> Iterator[InstallationFault]:
    """Files of our packages that are not as they were installed."""
    try:
        ours = distribution(NAME)
    except PackageNotFoundError:
        yield InstallationFault(NAME, "it is not installed: Python finds the packages by its path only")
        return
    files = [file for file in ours.files or () if file.parts[0] in PACKAGES]
    changed = [str(file) for file in files if _is_changed(file)]
    for name in changed[:_MOST]:
        others = ", ".join(sorted(each.name for each in distributions() if _has(each, name)))
        whose = f"{others} has written one of this name: uninstall it, then" if others else "it has changed:"
        yield InstallationFault(name, f"{whose} {_AGAIN}")
    if len(changed) > _MOST:
        yield InstallationFault(f"{len(changed) - _MOST} more files", "they have changed, too")


def _is_changed(file: PackagePath) -> bool:
    place = Path(str(file.locate()))
    if not place.is_file():
        return True
    if file.hash is None or file.hash.mode != "sha256":
        return False
    digest = base64.urlsafe_b64encode(hashlib.sha256(place.read_bytes()).digest())
    return digest.rstrip(b"=").decode() != file.hash.value


def _has(other: Distribution, name: str) -> bool:
    return other.name != NAME and any(str(file) == name for file in other.files or ())


def complete_extras() -> list[str]:
    """The extras of which all packages are installed. pip does not remember for which it was asked."""
    try:
        requirements = distribution(NAME).requires or []
    except PackageNotFoundError:
        return []
    extras: dict[str, set[str]] = {}
    for each in requirements:
        if found := re.match(r"([\w.-]+)[^;]*;.*extra == [\"'](\w+)[\"']", each):
            extras.setdefault(found[2], set()).add(found[1])
    return sorted(extra for extra, names in extras.items() if all(map(_is_installed, names)))


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
