"""docs/status.md agrees with the code, wherever the two can be compared."""

import inspect
import logging
import re

from sqlalchemy import create_engine

from inbox import Backoff, EventKind, SqlStore, Status, StatusInbox, Verdict
from inbox_outbox_base.monitoring.log import LEVELS
from tests.support.program import ROOT

PAGE = (ROOT / "docs" / "status.md").read_text()
DRAWN = re.compile(r"^ +(\w+|\[\*\]) --> (\w+|\[\*\]):", re.MULTILINE)
MINUTE, DAY = 60, 86_400


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    below = PAGE.split(f"\n{heading}", 1)[1]
    found = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert found, heading
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in found[0].splitlines()[2:]]


def test_every_option_is_explained_with_its_default() -> None:
    """The table of options lists all of them in order, with the defaults of an inbox."""
    options = [name for name in inspect.signature(StatusInbox).parameters if name != "consumer"]
    table = {name.strip("`"): default.strip("`") for name, default, _ in rows("## Options")}
    assert list(table) == options
    plain = StatusInbox("orders", store=SqlStore(create_engine("sqlite://")))
    assert {name: table[name] for name in options if name not in ("store", "on_event")} == {
        "lease": said(plain.lease),
        "max_attempts": str(plain.max_attempts),
        "heartbeat": str(plain.heartbeat),
        "max_runtime": str(plain.max_runtime),
        "backoff": "Backoff()" if plain.backoff == Backoff() else "",
        "retention": said(plain.retention.duration.total_seconds()),
        "dead_retention": said(plain.dead_retention),
        "keep_payload": str(plain.keep_payload),
        "missing_key": f'"{plain.missing_key}"',
        "unreachable": f'"{plain.unreachable}"',
        "on_refusal": f'"{plain.on_refusal}"',
        "remember": str(plain.remember),
        "record_refusals": f'"{plain.record_refusals}"',
        "key_time": str(plain.key_time),
    }


def said(seconds: float) -> str:
    """A duration in the words of the page."""
    return f"{seconds / DAY:.0f} days" if seconds >= DAY else f"{seconds / MINUTE:.0f} minutes"


def test_every_event_is_listed_with_its_level() -> None:
    """The table of events lists each kind with the level at which it is logged."""
    listed = {
        EventKind[name]: logging.getLevelNamesMapping()[level]
        for names, level, *_ in rows("## Monitoring")
        for name in re.findall(r"`(\w+)`", names)
    }
    assert listed == LEVELS


def test_every_verdict_is_explained() -> None:
    """The table of verdicts lists all of them."""
    listed = {name for cell, *_ in rows("`AsyncStatusInbox`") for name in re.findall(r"^`(\w+)`", cell)}
    assert listed == {verdict.name for verdict in Verdict}


def test_the_drawing_and_the_table_show_the_same() -> None:
    """The drawing and the table show the same changes of status."""
    drawn = {(start, end) for start, end in DRAWN.findall(PAGE)}
    told: set[tuple[str, str]] = set()
    for starts, end, *_ in rows("## The life of a message"):
        from_any = "consumed, failed, dead, halted" if starts == "any but consuming" else starts
        for start in from_any.replace(", lease over", "").split(", "):
            told.add((start.replace("nothing", "[*]"), end.replace("nothing", "[*]")))
    assert drawn == told
    assert {name for pair in drawn for name in pair} - {"[*]"} == {status.value for status in Status}
