"""Asks the web page, as a browser would."""

import asyncio
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import httpx

from inbox_outbox import web

SCRIPT = "<script>alert(1)</script>"
"""What must never be part of a page's HTML."""


Headers = Mapping[str, str]
OWN: Headers = {"Sec-Fetch-Site": "same-origin"}
"""What a browser says about a form of the page's own."""


class Forms(HTMLParser):
    """The forms of a page that post."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Form] = []
        self._is_in_one = False

    @classmethod
    def of(cls, page: str) -> "list[Form]":
        """Those in this HTML."""
        parser = cls()
        parser.feed(page)
        return parser.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A form, or one of its fields."""
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._is_in_one = given.get("method") == "post"
            if self._is_in_one:
                self.found.append(Form(given["action"]))
        elif self._is_in_one and "name" in given:
            field = given["name"], given.get("value", "")
            kinds = {"hidden": self.found[-1].hidden, "checkbox": self.found[-1].boxes}
            if tag == "button":
                self.found[-1].buttons.append(field)
            elif (kind := kinds.get(given.get("type", ""))) is not None:
                kind.append(field)


class Form:
    """One form, as names and values."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.hidden: list[tuple[str, str]] = []
        self.boxes: list[tuple[str, str]] = []
        self.buttons: list[tuple[str, str]] = []


class Visit:
    """Somebody who looks at the page of some databases."""

    def __init__(self, engine: Any, *, user: str | None = "ann", allow: tuple[str, ...] = (), **options: Any):
        self.engine = engine
        self.app = web.app(engine, user=lambda _: user, allow=lambda _: allow, **options)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer to one request."""
        return asyncio.run(self._ask(method, path, **options))

    def submit(
        self,
        page: str,
        do: str,
        tick: int | None = None,
        *,
        headers: Headers = OWN,
        **fields: str,
    ) -> httpx.Response:
        """Press a button of a page's form, with the first boxes ticked, all of them by default; other fields
        as they are, or as given."""
        form = next(each for each in Forms.of(page) if ("do", do) in each.buttons)
        hidden = [each for each in form.hidden if each[0] not in fields]
        return self.post([*hidden, *form.boxes[:tick], ("do", do), *fields.items()], form.action, headers)

    def post(self, fields: Any, path: str = "/decide", headers: Headers = OWN) -> httpx.Response:
        """Send a form with these fields."""
        said = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return self.ask("POST", path, content=urlencode(fields).encode(), headers=said)

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
