"""A program that takes webhooks: `python -m tests.support.brokers.webhook_program PORT FOLDER`.

A topic is a folder; to another one it answers 404. Each message becomes a file before the answer.
"""

import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn

from inbox import Delivery, Outcome, Verdict
from inbox.webhook import WebhookReceiver

SECRET = "whsec_dGhlIHNlY3JldCBvZiB0aGUgdGVzdHMncyBzZXJ2ZXI="  # noqa: S105 - opens nothing


def application(folder: Path) -> Any:
    """The ASGI application that writes to this folder."""

    def take(message: Delivery) -> Outcome:
        path = folder / message.topic / f"{time.time_ns():020}-{message.id}"
        with path.with_suffix(".part").open("xb") as file:
            pickle.dump(message, file)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".part").rename(path)
        return Outcome(Verdict.NEW)

    receiver = WebhookReceiver(take, SECRET)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not (folder / _topic(scope)).is_dir():
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"no such topic"})
        else:
            await receiver(scope, receive, send)

    return answer


def _topic(scope: Any) -> str:
    headers = {name.decode(): value for name, value in scope["headers"]}
    return str(json.loads(headers["outbox"])["topic"])


if __name__ == "__main__":
    port, folder = int(sys.argv[1]), Path(sys.argv[2])
    uvicorn.run(application(folder), host="127.0.0.1", port=port, log_level="warning", access_log=False)
