"""Carries out what a form asks for: about exactly the messages that the page has shown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

import inbox
import outbox
from inbox import BulkResult
from inbox.errors import InvalidOption, MessageNotFound, WrongStatus
from inbox_outbox_base.databases.relaying import ALL_TOPICS
from inbox_outbox_base.errors import secrets

from ._access import ACTIONS, DELIVER, Visitor
from ._causes import OUTBOX, merged, named
from ._guard import VISITOR
from ._pages import Asked, Page, base_of, drawn
from ._pulse import EXPECTED
from ._sites import Site

_LARGEST = 4_000_000
"""The most bytes of a form: it may name ten thousand messages."""
_MOST_FIELDS = 2_000
_NEEDS_SURE = ("drop", "discard", "release")
"""What cannot be taken back, and so is asked for twice."""
_NAMED = 20
"""So many of the messages are named when it is asked again."""
_CODES = ((InvalidOption, 400), (MessageNotFound, 404), (WrongStatus, 409))


@dataclass(frozen=True, slots=True)
class DecisionForm:
    """What a form of ours has sent."""

    fields: Mapping[str, Sequence[str]]

    def one(self, name: str) -> str:
        """The value of a field; empty if there is none."""
        return self.fields.get(name, ("",))[0]

    def optional(self, name: str) -> str | None:
        """The same without blanks around it; None if it is empty."""
        return self.one(name).strip() or None

    @property
    def action(self) -> str:
        """What to do."""
        return self.one("do").partition(" ")[0]

    @property
    def seen(self) -> str:
        """The messages that are meant.

        Raises:
            InvalidOption: there are none, or no page of ours has named them.
        """
        named = [self.one("every")] if self.one("do").endswith(" every") else self.fields.get("seen", ())
        if not named:
            raise InvalidOption("nothing is ticked")
        try:
            return merged(named)
        except ValueError as error:
            raise InvalidOption(f"seen: {error}") from None


def decide(site: Site) -> Any:
    """The endpoint of all forms."""

    async def endpoint(request: Request) -> Response:
        if request.method != "POST":  # somebody has loaded the address of an answer again
            return RedirectResponse(f"{base_of(request)}/", 303)
        visitor: Visitor = request.scope[VISITOR]
        form = DecisionForm(await _fields(request))
        needed = "retry" if form.action == DELIVER else form.action
        if needed not in ACTIONS:
            raise HTTPException(400, "the form asks for nothing that can be done")
        if not visitor.may(needed):
            raise HTTPException(403, f"{visitor.name} may not {needed}")
        asked = Asked(site, visitor, await site.pulse.latest(), request.query_params, base_of(request))
        if form.action in _NEEDS_SURE and not form.one("sure"):
            return await run_in_threadpool(_asked_again, asked, form)
        try:
            return await run_in_threadpool(_decided, asked, form)
        finally:
            site.pulse.forget()

    return endpoint


async def _fields(request: Request) -> Mapping[str, Sequence[str]]:
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(415, "expected a form")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST:
            raise HTTPException(413, "the form is too large")
    try:
        return parse_qs(
            body.decode(), keep_blank_values=True, strict_parsing=True, max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise HTTPException(400, "the form cannot be read") from None


def _asked_again(asked: Asked, form: DecisionForm) -> Response:
    half = form.one("half")
    try:
        names = named(form.seen, half)
    except ValueError as error:
        return _refused(asked, InvalidOption(f"seen: {error}"))
    hidden = [(name, value) for name, values in form.fields.items() for value in values]
    values = {
        "action": form.action,
        "count": len(names),
        "names": names[:_NAMED],
        "where": f"{'topic' if half == OUTBOX else 'consumer'} {form.one('of')}",
        "hidden": hidden,
        "back": _back(form),
    }
    return drawn(asked, Page("sure.html", f"{form.action.capitalize()}?", "stopped", values, is_live=False))


def _decided(asked: Asked, form: DecisionForm) -> Response:
    try:
        done = _do(asked, form)
    except EXPECTED as error:
        return _refused(asked, error)
    counts = {"done": done.done, "changed": done.changed, "left": done.left}
    said = urlencode({"did": form.action, **counts})
    return RedirectResponse(f"{asked.base}/{_back(form)}&{said}", 303)


def _refused(asked: Asked, error: Exception) -> Response:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), 503)
    values = {"why": secrets.reason(error)}
    return drawn(asked, Page("refused.html", "It was not done", "", values, code, is_live=False))


def _do(asked: Asked, form: DecisionForm) -> BulkResult:
    """Decide."""
    site, of = asked.site, form.one("of")
    who: dict[str, Any] = {"by": asked.visitor.name, "why": form.optional("why")}
    if form.action in ("pause", "resume"):
        decide = outbox.pause if form.action == "pause" else outbox.resume
        return BulkResult(decide(site.engine, of, schema=site.schema, **who))
    if form.action == "dismiss":
        about: dict[str, Any] = {"consumer": of, "seen": form.seen, "schema": site.schema, **who}
        return inbox.dismiss_all(site.engine, **about)
    if form.one("half") == OUTBOX:
        return _outbox(site, form, who)
    store = _store(site, form)
    if form.action == "resolve":
        result = form.optional("result")
        value = None if result is None else _json(result)
        outcome: Any = form.one("outcome")
        inbox.resolve_step(store, of, form.one("key"), form.one("step"), outcome, result=value, **who)
        return BulkResult(1)
    what: dict[str, Any] = {"consumer": of, "key": form.one("key") or None, "seen": form.seen, **who}
    if form.action == "release":
        return inbox.release_all(store, **what)
    if form.action in ("retry", DELIVER):
        return inbox.retry_all(store, form.one("state"), deliver=form.action == DELIVER, **what)
    if form.action == "discard":
        return inbox.discard_all(store, form.one("state"), **what)
    raise InvalidOption(f"{form.action}: not possible in the inbox")


def _outbox(site: Site, form: DecisionForm, who: Mapping[str, Any]) -> BulkResult:
    what: dict[str, Any] = {"topic": form.one("of"), "key": form.one("key") or None, "seen": form.seen}
    if form.action == "retry":
        return outbox.retry_all(site.engine, form.one("state"), schema=site.schema, **what, **who)
    if form.action == "drop":
        return outbox.drop_all(site.engine, form.one("state"), schema=site.schema, **what, **who)
    raise InvalidOption(f"{form.action}: not possible in the outbox")


def _store(site: Site, form: DecisionForm) -> inbox.Store:
    number = form.one("store") or "0"
    if not number.isascii() or not number.isdigit() or int(number[:4]) >= len(site.stores):
        raise InvalidOption(f"store={number:.20}: there is none")
    return site.stores[int(number[:4])]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"result={text[:80]!r}: expected JSON: {error}") from None


def _back(form: DecisionForm) -> str:
    """The page that had the form, from its own list."""
    if form.action in ("pause", "resume"):
        of = form.one("of")
        return "topics?all=1" if of == ALL_TOPICS else f"topic?{urlencode({'name': of})}"
    if form.action == "dismiss":
        return f"consumer?{urlencode({'name': form.one('of')})}"
    if asked := form.one("q"):
        return f"message?{urlencode({'q': asked})}"
    names = ("half", "state", "of", "store", "cause")
    return f"group?{urlencode({name: form.one(name) for name in names})}"
