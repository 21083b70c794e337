"""What the program says about itself: help, version, shell completion."""

import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
from typer.main import get_command

from inbox_outbox._app import app
from tests.support.cases import case
from tests.support.cli import in_this_process, succeeded

WIDTH = 80


def commands(command: Any, *path: str) -> Iterator[list[str]]:
    """The program, its groups and its commands, as words of the command line."""
    yield [*path]
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, *path, name)


def printed(*arguments: str) -> str:
    """What the program prints, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", succeeded(in_this_process(*arguments)))


def listed(page: str) -> list[list[str]]:
    """The lines about each command in a group's help."""
    found: list[list[str]] = []
    lines = [line for line in page.partition("Commands")[2].splitlines() if line.startswith("│")]
    first = re.match(r"│ \S+ +", lines[0])
    assert first is not None
    for line in lines:
        name, text = line[1 : first.end()].strip(), line[first.end() : -1].strip()
        if name:
            found.append([])
        found[-1].append(text)
    return found


def flows(lines: list[str], room: int) -> bool:
    """Whether each line has as many words as fit."""
    following = (line.split()[0] for line in lines[1:])
    return all(len(f"{line} {word}") > room for line, word in zip(lines, following, strict=False))


def test_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command explains itself, to `--help` and to `-h`. On a terminal with 80 columns nothing is cut
    off, and no line is shorter than it has to be. Values have names in capitals, and flags have none."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    pages = list(commands(get_command(app)))
    assert ["outbox", "drain"] in pages
    for words in pages:
        with case(words):
            page = printed(*words, "--help")
            assert page == printed(*words, "-h")
            assert f"Usage: {' '.join(['inbox-outbox', *words])} " in page
            assert "…" not in page
            assert not re.search(r"<\w+>|[{][a-z]", page)
            assert max(map(len, page.splitlines())) <= WIDTH
            for paragraph in re.split(r"\n *\n", page.partition("╭")[0].strip()):
                assert flows([line.strip() for line in paragraph.splitlines()], WIDTH - 2)


@pytest.mark.parametrize("group", [[], ["inbox"], ["outbox"]], ids=str)
def test_lists_of_commands(monkeypatch: pytest.MonkeyPatch, group: list[str]) -> None:
    """A group's help has the first paragraph of each command's, with a line for as many words as fit; the
    exit codes are on the first page."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    page = printed(*group, "-h")
    assert ("Exit codes: 0 done" in page) is (group == [])
    texts = listed(page)
    room = max(len(line) for lines in texts for line in lines)
    assert any(len(lines) > 1 for lines in texts)
    for lines in texts:
        assert flows(lines, room), lines
        assert "exit code" not in " ".join(lines).lower()


def test_version() -> None:
    """`--version` names the distribution and its version."""
    assert succeeded(in_this_process("--version")) == f"inbox-outbox {version('inbox-outbox')}\n"


def test_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell asks the program, which completes commands, options and their values."""
    assert "--install-completion" in printed("-h")
    for words, incomplete, found in (
        ("inbox-outbox outbox", "re", ["resume", "retry", "relay"]),
        ("inbox-outbox outbox peek", "--st", ["--state"]),
        ("inbox-outbox outbox peek --state", "de", ["delayed", "dead"]),
    ):
        monkeypatch.setenv("_INBOX_OUTBOX_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", f"{words} {incomplete}")
        monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
        assert succeeded(in_this_process()).split() == found
