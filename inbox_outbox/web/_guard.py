"""What every request has to pass before it reaches a page."""

from collections.abc import Awaitable, Callable, Collection
from inspect import isawaitable
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ._access import Visitor

User = Callable[[Request], str | None] | Callable[[Request], Awaitable[str | None]]
Allow = Callable[[str], Collection[str]]

VISITOR = "inbox_outbox.visitor"
"""Where the guard leaves who asks."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SAFE = ("GET", "HEAD")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Lets through who has a name, asks by a name of ours, and does not decide on another site's behalf."""

    def __init__(self, app: ASGIApp, user: User, allow: Allow, hosts: Collection[str]) -> None:
        self._inner, self._user, self._allow = app, user, allow
        self._hosts = {each.lower() for each in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":  # there is no WebSocket behind it
            await self._inner(scope, receive, send)
            return
        request = Request(scope, receive)
        answer: ASGIApp = await self._refusal(request) or self._inner
        await answer(scope, receive, _with_headers(send))

    async def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if _name_of(host) not in self._hosts:
            return PlainTextResponse("this page is not served under that name: see `hosts`", 400)
        if request.method not in _SAFE and not _is_own(request, host):
            return PlainTextResponse("the form of another site is refused", 403)
        try:
            found = self._user(request)
            name = await found if isawaitable(found) else found
        except HTTPException as refused:
            return PlainTextResponse(refused.detail, refused.status_code, refused.headers)
        if name is None:
            return PlainTextResponse("no user is logged in", 403)
        request.scope[VISITOR] = Visitor.of(name, self._allow(name))
        return None


def _name_of(host: str) -> str:
    """The name in a `Host` header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_own(request: Request, host: str) -> bool:
    """Whether a form of our own pages was sent. Browsers say so; old ones name the page's origin."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    _, is_address, origin = request.headers.get("origin", "").partition("://")
    return bool(is_address) and origin.lower() == host.lower()


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return sending
