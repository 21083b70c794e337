"""The client for the order flow's services."""

import json
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

PATIENCE = 30
"""The most seconds for a call."""


class Refused(Exception):
    """The service refuses permanently."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A service on this machine."""

    port: int

    def call(self, verb: str, order: str, *, key: str | None = None, **details: str) -> Any:
        """Make a call, with an idempotency key if given; return the id of what it created, if anything.

        Raises:
            Refused: the service refuses.
            OSError: no answer.
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        status, answer = self._request("POST", f"/{verb}", {"order": order} | details, headers)
        if status != 200:
            raise Refused(answer["refused"])
        return answer.get("id")

    def state(self) -> dict[str, dict[str, int]]:
        """The service's `calls` by verb and order, and the things `kept` by order."""
        found: dict[str, dict[str, int]] = self._request("GET", "/", None, {})[1]
        return found

    def _request(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request(method, path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
