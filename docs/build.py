"""Builds the documentation site in build/site: `make docs`.

The site has the pages of docs/, and pages that are made here: README as the first page, CHANGELOG, the
reference of the public modules from their docstrings, and that of the commands from their `--help`. The build
fails for a link that leads nowhere, a public name without a docstring, and a docstring that does not fit its
signature.
"""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import typer.main
from typer.testing import CliRunner

from inbox_outbox._app import app

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PAGES = BUILD / "pages"
REPOSITORY = "https://example.org/inbox-outbox"
"""Where the repository is: a placeholder until there is one, as in pyproject.toml."""
MODULES = {
    "inbox": ["inbox", "inbox.errors", "inbox.migration", "inbox.schema"],
    "outbox": ["outbox", "outbox.errors", "outbox.schema"],
    "brokers": [
        f"{half}.{name}"
        for name in ("kafka", "nats", "rabbitmq", "redis_streams", "rocketmq", "sqs", "webhook")
        for half in ("inbox", "outbox")
    ],
    "frameworks": ["inbox.celery", "inbox.django", "inbox.faststream"],
    "spark": ["spark", "spark.errors"],
    "operations": [
        "inbox.otel",
        "inbox.probes",
        "inbox_outbox.metrics",
        "inbox_outbox.prometheus",
        "inbox_outbox.web",
    ],
    "testing": ["inbox_outbox.testing"],
    "adapters": ["inbox.testing", "outbox.testing"],
    "faults": ["inbox_outbox.faults"],
}
"""The pages of the reference, and the public modules on each."""
OUTSIDE = re.compile(r"\]\(\.\./(?!docs/)([^)]+)\)")
IN_DOCS = re.compile(r"\]\(docs/([^)]+)\)")
INSIDE = re.compile(r"\]\((?!https?:|#)([^)]+)\)")


class BuildFailed(Exception):
    """The site has a mistake."""


def main() -> None:
    """Writes the pages, and has Zensical make the site from them."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for each in sorted((ROOT / "docs").rglob("*")):
        if each.suffix in (".md", ".png", ".svg"):
            copy = PAGES / each.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each, copy)
    for page in PAGES.rglob("*.md"):
        text = (
            page.read_text()
            .replace("](../README.md", "](index.md")
            .replace("](../CHANGELOG.md", "](changes.md")
        )
        page.write_text(OUTSIDE.sub(rf"]({REPOSITORY}/blob/main/\1)", text))
    (PAGES / "index.md").write_text(_at_top("README.md"))
    (PAGES / "changes.md").write_text(_at_top("CHANGELOG.md"))
    (PAGES / "reference").mkdir()
    for name, modules in MODULES.items():
        (PAGES / "reference" / f"{name}.md").write_text(_api(name, modules))
    (PAGES / "reference" / "commands.md").write_text(_commands())
    _check_navigation()
    _run_zensical()


def _check_navigation() -> None:
    """Each page has its place in the navigation."""
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(page.relative_to(PAGES)) for page in PAGES.rglob("*.md")}
    if listed != pages:
        raise BuildFailed(
            f"mkdocs.yml: pages that are missing or do not exist: {', '.join(sorted(listed ^ pages))}"
        )


def _at_top(name: str) -> str:
    """A page of the repository's root, with the links that it needs in docs/."""
    page = IN_DOCS.sub(r"](\1)", (ROOT / name).read_text()).replace("](CHANGELOG.md)", "](changes.md)")

    def moved(link: re.Match[str]) -> str:
        is_page = (PAGES / link[1].partition("#")[0]).exists() or link[1] == "changes.md"
        return link[0] if is_page else f"]({REPOSITORY}/blob/main/{link[1]})"

    return INSIDE.sub(moved, page)


def _api(name: str, modules: list[str]) -> str:
    """The page with the public names of `modules`."""
    parts = [f"# {name.capitalize()}"]
    for each in map(importlib.import_module, modules):
        options = "{members: false, show_root_heading: false, show_root_toc_entry: false}"
        parts += [f"## {each.__name__}", f"::: {each.__name__}\n    options: {options}"]
        for public in sorted(_names(each)):
            value = getattr(each, public)
            if (inspect.isclass(value) or inspect.isfunction(value)) and not inspect.getdoc(value):
                raise BuildFailed(f"{each.__name__}.{public} has no docstring")
            parts.append(f"::: {each.__name__}.{public}")
    return "\n\n".join(parts) + "\n"


def _names(module: ModuleType) -> Iterator[str]:
    """The public names of a module, without the modules that it exports."""
    for name in module.__all__:
        if not inspect.ismodule(getattr(module, name)):
            yield name


def _commands() -> str:
    """The page with the `--help` of every command."""
    parts = ["# Commands"]
    group = typer.main.get_command(app)
    for path in sorted(_paths(group, ())):
        shown = CliRunner().invoke(
            app, [*path, "--help"], env={"COLUMNS": "80", "TERM": "dumb"}, prog_name="inbox-outbox"
        )
        parts += [f"## {' '.join(('inbox-outbox', *path))}", f"```text\n{shown.output.strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _paths(command: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The command and those below it."""
    yield path
    for name, each in getattr(command, "commands", {}).items():
        yield from _paths(each, (*path, name))


def _run_zensical() -> None:
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [zensical, "build", "--clean", "--strict"], cwd=ROOT, env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    mistakes = [line for line in done.stdout.splitlines() if line.startswith("griffe:")]
    if done.returncode or mistakes:
        raise BuildFailed(done.stdout)


if __name__ == "__main__":
    try:
        main()
    except BuildFailed as error:
        sys.exit(f"{error}")
    print(f"{BUILD / 'site' / 'index.html'}")
