"""Webhooks: our publisher beside httpx, and our receiver beside an ASGI application without ours.

The receivers are called as a server calls them, so that no server is measured.
"""

import asyncio
import base64
import hmac
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import httpx

from examples.embedded_postgres import ServerProcess, free_port
from inbox import Delivery, Outcome
from inbox.webhook import WebhookReceiver
from outbox import Accepted, Envelope
from outbox.webhook import WebhookEndpoint, WebhookPublisher
from tests.support.brokers.webhook_posting import of_outbox
from tests.support.brokers.webhook_program import SECRET

from ._brokers_lab import Count, Speed, grid, messages_of, rate_ratios, speed, speeds_of
from ._brokers_messages import BATCH, envelopes, send
from ._lab import Lab
from ._measure import Report, figure

_IN_FLIGHT = 8
"""Requests, as many as the publisher's."""
_TARGET = 0.9
_KEY = base64.b64decode(SECRET.removeprefix("whsec_"))
_HOST = "127.0.0.1"

Request = tuple[list[tuple[bytes, bytes]], bytes]


class Hooking:
    """Requests in memory. As a publisher, it makes them."""

    def __init__(self) -> None:
        self.publisher = self
        self._requests: dict[str, deque[Request]] = {}

    def new_topic(self, workers: int) -> str:
        """As `Broker.new_topic`."""
        return f"topic {len(self._requests)}"

    def send(self, batch: Sequence[Envelope]) -> list[Accepted]:
        """Keep the requests of these messages."""
        for message in batch:
            body, headers = of_outbox(message)
            pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
            self._requests.setdefault(message.topic, deque()).append((pairs, body))
        return [Accepted()] * len(batch)

    def consumer(self, topic: str, workers: int, handler: Callable[[Delivery], Outcome]) -> "Pushed":
        """As `Broker.consumer`."""
        return Pushed(WebhookReceiver(handler, SECRET, concurrency=workers), self._requests[topic], workers)

    def consume_bare(self, topic: str, workers: int, work: Callable[[bytes], object], count: Count) -> None:
        """The application verifies the signature, and works in a thread."""
        with ThreadPoolExecutor(workers) as pool:

            async def app(scope: Any, receive: Any, answer: Any) -> None:
                headers = dict(scope["headers"])
                body = (await receive())["body"]
                signed = b"%s.%s.%s" % (headers[b"webhook-id"], headers[b"webhook-timestamp"], body)
                digest = base64.b64encode(hmac.digest(_KEY, signed, "sha256"))
                if not hmac.compare_digest(b"v1," + digest, headers[b"webhook-signature"]):
                    raise AssertionError(headers)
                await asyncio.get_running_loop().run_in_executor(pool, work, body)
                await answer({"type": "http.response.start", "status": 204, "headers": []})
                await answer({"type": "http.response.body", "body": b""})

            Pushed(app, self._requests[topic], workers).run()


class Pushed:
    """Sends requests to an application, so many at the same time."""

    def __init__(self, app: Any, requests: deque[Request], workers: int) -> None:
        self._app = app
        self._requests = requests
        self._workers = workers

    def run(self) -> None:
        """Send all of them."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """It ends with the last one."""

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while self._requests:
            headers, body = self._requests.popleft()
            scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
            statuses: list[int] = []
            await self._app(scope, partial(_received, body), partial(_answered, statuses))
            if statuses != [204]:
                raise AssertionError(statuses)


async def _received(body: bytes) -> dict[str, Any]:
    return {"type": "http.request", "body": body}


async def _answered(statuses: list[int], event: dict[str, Any]) -> None:
    if "status" in event:
        statuses.append(event["status"])


def publish_to_webhook(lab: Lab) -> Report:
    """To an endpoint of this machine that answers at once, without TLS."""
    report, title = Report(), "a webhook"
    with _endpoint() as url:
        publisher = WebhookPublisher(WebhookEndpoint(url, SECRET), allow=[_HOST], timeout=60)
        turns = {
            "publisher": _turn(lab, partial(send, publisher)),
            "httpx": _turn(lab, lambda messages: asyncio.run(_send_bare(url, messages))),
        }
        speeds = speeds_of(lab, title, turns)
        publisher.close()
    found = rate_ratios(speeds, "publisher", "httpx")
    report.figures.append(figure(f"{title}: publisher / httpx", found, at_least=_TARGET))
    report.grids.append(grid(f"speed to {title}", speeds))
    return report


def _turn(lab: Lab, send_all: Callable[[Sequence[Envelope]], object]) -> Callable[[], Speed]:
    def turn() -> Speed:
        messages = envelopes("orders", messages_of(lab))
        begun = perf_counter(), process_time()
        send_all(messages)
        return speed(len(messages), begun, (perf_counter(), process_time()))

    return turn


async def _send_bare(url: str, messages: Sequence[Envelope]) -> None:
    """As a program without an outbox would do it."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        for start in range(0, len(messages), BATCH):
            waiting = deque(messages[start : start + BATCH])
            async with asyncio.TaskGroup() as group:
                for _ in range(_IN_FLIGHT):
                    group.create_task(_post(client, url, waiting))


async def _post(client: httpx.AsyncClient, url: str, waiting: deque[Envelope]) -> None:
    while waiting:
        message = waiting.popleft()
        timestamp = str(int(time.time()))
        signed = f"{message.id}.{timestamp}.".encode() + message.payload
        signature = base64.b64encode(hmac.digest(_KEY, signed, "sha256")).decode()
        headers = {
            "content-type": message.content_type,
            "webhook-id": message.id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{signature}",
        }
        answer = await client.post(url, content=message.payload, headers=headers)
        if not answer.is_success:
            raise AssertionError(answer.status_code)


@contextmanager
def _endpoint() -> Iterator[str]:
    port = free_port()
    url = f"http://{_HOST}:{port}/"

    def is_ready() -> bool:
        try:
            return httpx.post(url, trust_env=False).is_success
        except httpx.TransportError:
            return False

    command = [sys.executable, "-m", "benchmarks._brokers_webhook", str(port)]
    with TemporaryDirectory() as folder:
        server = ServerProcess(command, Path(folder), user=None, is_ready=is_ready)
        try:
            yield url
        finally:
            server.stop(signal.SIGKILL)


async def _answer(scope: Any, receive: Any, answer: Any) -> None:
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await answer({"type": "http.response.start", "status": 204, "headers": []})
        await answer({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(_answer, host=_HOST, port=int(sys.argv[1]), log_level="critical", access_log=False)
