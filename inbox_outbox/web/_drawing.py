"""Draws pages from templates. Everything that comes from a database is escaped."""

import hashlib
import shlex
from collections.abc import Mapping
from datetime import datetime, timedelta
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from inbox_outbox._operating.units import duration, size
from outbox import Count

TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PRECISE = {
    "exact": "",
    "at least": "at least: there may be more, which were not read",
    "estimate": "an estimate, from the server's statistics",
}


def _static() -> dict[str, bytes]:
    folder = files("inbox_outbox.web") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.split(".")[-1] in TYPES}


STATIC: Mapping[str, bytes] = _static()
VERSION = hashlib.sha256(b"".join(STATIC.values())).hexdigest()[:12]
"""Part of the addresses of these files, so that a browser can keep them."""


def draw(template: str, **values: Any) -> str:
    """The HTML of a template."""
    return _environment.get_template(template).render(values)


_MOMENT = timedelta(seconds=2)
"""The database's clock is read in another statement than the rows."""


def _count(count: Count) -> Markup:
    """A number; one that is not exact says so."""
    said = _PRECISE[count.precision]
    if not said:
        return Markup("{}").format(str(count))
    return Markup('<abbr class="about" title="{}">{}</abbr>').format(said, str(count))


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else duration(timedelta(seconds=seconds))  # noqa: RUF001 - a dash


def _ago(time: datetime | None, now: datetime) -> Markup:
    """How long ago, or in how long; the time itself is the title."""
    if time is None:
        return Markup("–")  # noqa: RUF001 - a dash
    ahead = time - now
    # What happened after the page was read has not happened in the future.
    said = f"in {duration(ahead)}" if ahead > _MOMENT else f"{duration(max(-ahead, timedelta(0)))} ago"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(time.isoformat(), _time(time), said)


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _query(**values: object) -> str:
    """The part of an address after the question mark."""
    return urlencode({name: value for name, value in values.items() if value is not None})


_environment = Environment(
    loader=PackageLoader("inbox_outbox.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "count": _count,
    "seconds": _seconds,
    "ago": _ago,
    "time": _time,
    "span": duration,
    "size": size,
    "quoted": shlex.quote,
}
_environment.globals |= {"query": _query, "version": VERSION}
