"""How a page is asked for and answered."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from inbox import SqlStore
from inbox_outbox._operating.looking import Half, Halves, not_in_time
from inbox_outbox_base.errors import secrets
from inbox_outbox_base.errors.codes import is_limited

from ._access import DELIVER, Visitor
from ._drawing import draw
from ._guard import VISITOR
from ._pulse import EXPECTED, Glance
from ._sites import SECONDS, Site

T = TypeVar("T")
_PATIENCE = 15.0
"""Seconds that a page may take: some parts of it are read one after the other."""
TOO_SLOW = f"what takes longer than {SECONDS:.0f} s to read"
"""Said of a part whose statement the database has ended."""
WITHIN = 10_000
"""The messages that wait for a relay, the oldest ones, among which those of a topic or a state are looked
for; on PostgreSQL, which has an index of failed ones, perhaps all."""
_MENU = (
    ("", "Overview"),
    ("topics", "Topics"),
    ("stopped", "Stopped"),
    ("consumers", "Consumers"),
    ("relays", "Relays"),
    ("decisions", "Decisions"),
)
_HALVES = {"topics": Half.OUTBOX, "relays": Half.OUTBOX, "consumers": Half.INBOX}
"""What the pages of an entry are about, if not about both."""
_DID = {
    "retry": "retried",
    "deliver": "retried, and published again",
    "drop": "dropped",
    "discard": "discarded",
    "release": "taken away from its handler",
    "resolve": "resolved",
    "dismiss": "dismissed",
}
"""What a form has done, in the passive."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a page."""

    site: Site
    visitor: Visitor
    glance: Glance
    query: QueryParams
    base: str
    """What comes before the addresses of the pages."""

    @property
    def halves(self) -> Halves:
        """The overviews."""
        return self.glance.halves

    def with_delivery(self, allowed: Sequence[str], store: int) -> list[str]:
        """These actions, and beside "retry", to publish again through the outbox of the store's database."""
        has_outbox = isinstance(self.site.stores[store], SqlStore) and (store or self.halves.outbox)
        if "retry" not in allowed or not has_outbox:
            return [*allowed]
        return [DELIVER, "retry", *(each for each in allowed if each != "retry")]

    @property
    def is_long(self) -> bool:
        """Whether more messages wait for a relay than a page looks at."""
        outbox = self.halves.outbox
        return outbox is not None and outbox.pending.number >= WITHIN


@dataclass(frozen=True, slots=True)
class Page:
    """The answer."""

    template: str
    title: str
    section: str
    """The entry of the menu that it belongs to."""
    values: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    is_live: bool = True
    """Whether it is drawn again when something has changed."""


@dataclass(frozen=True, slots=True)
class PagePart(Generic[T]):
    """A part of a page that was read on its own; without it, the rest is shown."""

    value: T
    error: str | None = None


def read(what: Callable[[], T], otherwise: T) -> PagePart[T]:
    """Read a part; a database's error is its answer."""
    try:
        return PagePart(what())
    except EXPECTED as error:
        return PagePart(otherwise, _why_not(error))


def _why_not(error: Exception) -> str:
    is_late = any(each is not None and is_limited(each) for each in (error, error.__cause__))
    return TOO_SLOW if is_late else secrets.reason(error)


def read_all(what: Callable[[], Iterable[T]]) -> PagePart[list[T]]:
    """The same of rows; there are none if it fails."""
    return read(lambda: [*what()], [])


def page(site: Site, answer: Callable[[Asked], Page]) -> Callable[[Request], Any]:
    """The endpoint of a page. While the database does not answer, every page says so."""

    async def endpoint(request: Request) -> Response:
        glance = await site.pulse.latest()
        asked = Asked(site, request.scope[VISITOR], glance, request.query_params, base_of(request))
        if glance.error is not None:
            return drawn(asked, _is_away(glance.error))
        reading = asyncio.ensure_future(run_in_threadpool(_answered, asked, answer))
        await asyncio.wait({reading}, timeout=_PATIENCE)
        if reading.done():
            return reading.result()
        return drawn(asked, _is_away(f"this page has had no answer for {_PATIENCE:.0f} s"))

    return endpoint


def base_of(request: Request) -> str:
    """What comes before the addresses of the pages of a database."""
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")


def _answered(asked: Asked, answer: Callable[[Asked], Page]) -> Response:
    try:
        found = answer(asked)
    except EXPECTED as error:
        found = _error("It could not be read", _why_not(error))
    late = asked.halves.late
    if late and (found.status == 404 or _HALVES.get(found.section) in late):
        found = _error("It was not read in time", "; ".join(map(not_in_time, late)))
    return drawn(asked, found)


def drawn(asked: Asked, found: Page) -> Response:
    """The page as HTML."""
    halves = asked.halves
    databases = [each.database for each in (halves.outbox, halves.inbox) if each is not None]
    html = draw(
        found.template,
        **found.values,
        title=found.title,
        section=found.section,
        menu=_MENU,
        is_live=found.is_live,
        base=asked.base,
        site=asked.site.name,
        visitor=asked.visitor,
        mark=asked.glance.mark,
        database=databases[0] if databases else None,
        late=[not_in_time(each) for each in halves.late],
    )
    return HTMLResponse(html.encode(errors="replace"), found.status)  # a key may have lone surrogates


def _is_away(why: str) -> Page:
    return _error("The database does not answer", why)


def _error(what: str, why: str) -> Page:
    return Page("away.html", what, "", {"why": why}, 503)


def missing(what: str) -> Page:
    """There is no such thing."""
    return Page("missing.html", "Not found", "", {"what": what}, 404, is_live=False)


def number_of(text: str | None) -> int:
    """The number in a part of an address; 0 if it is none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0


def outcome_of(asked: Asked) -> dict[str, object]:
    """What a decision, from which this page was opened, has done."""
    did = asked.query.get("did")
    counts = {name: number_of(asked.query.get(name)) for name in ("done", "changed", "left")}
    return {"did": did if did in _DID else None, "said": _DID, **counts}
