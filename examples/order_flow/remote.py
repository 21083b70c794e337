"""How the order flow calls a service."""

import json
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

PATIENCE = 30
"""Seconds that a call may take."""


class Refused(Exception):
    """The service says no, and will say so again."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A service on this machine."""

    port: int

    def call(self, verb: str, order: str, *, key: str | None = None, **details: str) -> Any:
        """Make one call, with an idempotency key if there is one; the id of what it made, if anything.

        Raises:
            Refused: the service says no.
            OSError: no answer.
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        status, answer = self._request("POST", f"/{verb}", {"order": order} | details, headers)
        if status != 200:
            raise Refused(answer["refused"])
        return answer.get("id")

    def state(self) -> dict[str, dict[str, int]]:
        """`calls` by verb and order, and what is `kept` by order."""
        found: dict[str, dict[str, int]] = self._request("GET", "/", None, {})[1]
        return found

    def _request(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request(method, path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
