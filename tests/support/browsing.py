"""Asks the web page, as a browser would."""

import asyncio
import re
from typing import Any

import httpx

from inbox_outbox import web

SCRIPT = "<script>alert(1)</script>"
"""What must never be part of a page's HTML."""


class Visit:
    """Somebody who looks at the page of some databases."""

    def __init__(self, engine: Any, *, user: str | None = "ann", allow: tuple[str, ...] = (), **options: Any):
        self.app = web.app(engine, user=lambda _: user, allow=lambda _: allow, **options)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer to one request."""
        return asyncio.run(self._ask(method, path, **options))

    async def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
            return await client.request(method, path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Open a page."""
        return self.ask("GET", path, **options)

    def see(self, path: str, **query: str) -> str:
        """The text of a page that is there, without its HTML; it must not contain a script of others."""
        found = self.get(path, params=query)
        assert found.status_code == 200, found.text
        assert SCRIPT not in found.text
        return seen(found)


def seen(answer: httpx.Response) -> str:
    """The text that a page shows, without its menu."""
    main = answer.text.partition("<main")[2]
    text = re.sub(r"</?(?:a|abbr|code|small|span|strong|time)\b[^>]*>", "", main.partition(">")[2])
    text = re.sub(r"<[^>]*>", " ", text)
    for code, character in (("&lt;", "<"), ("&gt;", ">"), ("&#39;", "'"), ("&#34;", '"'), ("&amp;", "&")):
        text = text.replace(code, character)
    return " ".join(text.split())
