"""The ASGI application."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from inbox import RedisStore
from inbox.errors import InvalidOption
from inbox_outbox_base.checks.extras import brought_by

from ._access import nobody

with brought_by("web"):
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, Response, StreamingResponse
    from starlette.routing import BaseRoute, Mount, Route

    from . import _inbox_pages, _message_page, _outbox_pages, _stopped_pages
    from ._deciding import decide
    from ._drawing import STATIC, TYPES, VERSION, draw
    from ._guard import LOOPBACK, VISITOR, Allow, Guard, User
    from ._pages import Asked, Page, base_of, page
    from ._pulse import problems_in
    from ._sites import Show, Site, sites_of

_PAGES: dict[str, Callable[[Asked], Page]] = {
    "/": _outbox_pages.overview,
    "/topics": _outbox_pages.topics,
    "/topic": _outbox_pages.topic,
    "/relays": _outbox_pages.relays,
    "/decisions": _outbox_pages.decisions,
    "/consumers": _inbox_pages.consumers,
    "/consumer": _inbox_pages.consumer,
    "/stopped": _stopped_pages.stopped_page,
    "/group": _stopped_pages.group,
    "/message": _message_page.message,
}

_UNBUFFERED = {"X-Accel-Buffering": "no"}
"""Tells nginx to pass events on as they come."""


def app(
    engine: Engine | Mapping[str, Engine],
    *,
    user: User,
    allow: Allow = nobody,
    stores: Sequence[RedisStore] | Mapping[str, Sequence[RedisStore]] = (),
    show: Show | None = None,
    hosts: Collection[str] | None = None,
    schema: str | None = None,
) -> Starlette:
    """The web page for operators, an ASGI application: serve it, or mount it in another one.

    It looks at the database in transactions that cannot write and whose statements take two seconds at most,
    and asks for its overviews once in two seconds and for a chart once in ten, however many pages are open.
    Every decision is stored, with who and why. It needs no lifespan events.

    Args:
        engine: the Engine of the database, or a mapping of names to Engines.
        user: a function of the request, synchronous or not, that returns the name of the user who asks, 1 to
            255 bytes of UTF-8, or None: then the answer is 403. It may raise Starlette's HTTPException, such
            as 401 with a challenge. Whoever has a name may look: topics, keys, ids, errors and sizes are
            shown.
        allow: a function of the user's name that returns which of `ACTIONS` are allowed; by default none.
        stores: further stores of status-table mode, on Redis; with a mapping of engines, a mapping too.
        show: a function of the user's name, the topic or consumer, and a payload or result, that returns the
            text to show, or None. Without it, or the action "show", only sizes are shown, and no headers.
        hosts: the names under which browsers may ask for the page, without ports; others are answered with
            400. None: localhost, 127.0.0.1 and ::1.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
        UnsupportedDatabase: not PostgreSQL, MySQL, MariaDB or SQLite.
        ModuleNotFoundError: the extra `web` is not installed.
    """
    for option, given in (("user", user), ("allow", allow), ("show", show)):
        if not callable(given) and not (option == "show" and given is None):
            raise InvalidOption(f"{option}={given!r:.80}: expected a function")
    names = LOOPBACK if hosts is None else hosts
    if isinstance(names, str) or not all(isinstance(each, str) for each in names):
        raise InvalidOption(f"hosts={names!r:.80}: expected names such as ops.example.com")
    sites = sites_of(engine, stores, schema, show)
    if sites and sites[0].name is None:
        routes = _routes(sites[0])
    else:
        routes = [Route("/", _list_of(sites)), _static()]
        routes += [Mount(f"/{each.name}", routes=_routes(each)) for each in sites]
    guard = Middleware(Guard, user=user, allow=allow, hosts=names)
    return Starlette(routes=routes, middleware=[guard])


def _routes(site: Site) -> list[BaseRoute]:
    """The pages of one database."""
    pages = [Route(path, page(site, answer)) for path, answer in _PAGES.items()]

    async def live(_: Request) -> Response:
        return StreamingResponse(site.pulse.events(), media_type="text/event-stream", headers=_UNBUFFERED)

    deciding = Route("/decide", decide(site), methods=["GET", "POST"])
    return [*pages, deciding, Route("/live", live), _static()]


def _static() -> BaseRoute:
    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            return Response("not found", 404)
        kept = {"Cache-Control": "private, max-age=31536000, immutable"}
        is_newest = request.query_params.get("v") == VERSION
        return Response(
            STATIC[name], media_type=TYPES[name.split(".")[-1]], headers=kept if is_newest else None
        )

    return Route("/static/{name}", static)


def _list_of(sites: Sequence[Site]) -> Callable[[Request], Any]:
    """The page that lists the databases."""

    async def endpoint(request: Request) -> Response:
        seen = await asyncio.gather(*(each.pulse.latest() for each in sites))
        said = [(each.name, glance, problems_in(glance)) for each, glance in zip(sites, seen, strict=True)]
        frame = {"title": "Databases", "section": "", "site": None, "database": None, "menu": (), "late": ()}
        asker = {"visitor": request.scope[VISITOR], "base": base_of(request)}
        return HTMLResponse(draw("databases.html", said=said, is_live=False, mark="", **frame, **asker))

    return endpoint
