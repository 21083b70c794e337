"""A sender that keeps sending, and receivers that run like consumers, each under a server of its own."""

import asyncio
import pickle
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from examples.embedded_postgres import free_port
from inbox import Decision, Delivery
from inbox.webhook import WebhookReceiver
from outbox import Accepted, Envelope
from outbox.webhook import WebhookEndpoint, WebhookPublisher
from tests.support.answers import published

from .webhook_endpoint import LOCAL
from .webhook_posting import Given
from .webhook_program import SECRET

_AGAIN = 0.05
_HOST = "127.0.0.1"


@dataclass
class _Waiting:
    message: Envelope
    due: float = 0.0


class WebhookSender:
    """Sends the messages of each key one after the other, as a relay does, until each is taken."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self._waiting: dict[str, list[_Waiting]] = {}
        self._odd: dict[str, list[Given]] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def new(self, topic: str) -> str:
        """A topic with an endpoint of its own."""
        self.ports[topic] = free_port()
        self._waiting[topic], self._odd[topic] = [], []
        self._threads.append(threading.Thread(target=self._run, args=[topic]))
        self._threads[-1].start()
        return topic

    def put(self, topic: str, messages: Sequence[Envelope]) -> None:
        """Send these, too."""
        with self._lock:
            self._waiting[topic] += map(_Waiting, messages)

    def put_odd(self, topic: str, requests: Sequence[Given]) -> None:
        """Send these requests once somebody listens, whatever is answered."""
        self._odd[topic] += requests

    def close(self) -> None:
        """Send no more."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, topic: str) -> None:
        url = f"http://{_HOST}:{self.ports[topic]}/{topic}"
        publisher = WebhookPublisher(WebhookEndpoint(url, SECRET), allow=LOCAL, timeout=30)
        while not self._is_over.wait(0.01):
            while self._odd[topic] and _was_answered(url, *self._odd[topic][0]):
                self._odd[topic].pop(0)
            batch = [] if self._odd[topic] else self._next(topic)
            for each, outcome in zip(
                batch, published(publisher, [each.message for each in batch]), strict=True
            ):
                if outcome == Accepted():
                    with self._lock:
                        self._waiting[topic].remove(each)
                else:
                    each.due = time.monotonic() + (getattr(outcome, "retry_after", None) or _AGAIN)
        publisher.close()

    def _next(self, topic: str) -> list[_Waiting]:
        first: dict[str, _Waiting] = {}
        with self._lock:
            for place, each in enumerate(self._waiting[topic]):
                key = each.message.key
                first.setdefault(f"{place}" if key is None else f"key {key}", each)
        return [each for each in first.values() if each.due <= time.monotonic()]


def _was_answered(url: str, body: bytes, headers: Any) -> bool:
    try:
        httpx.post(url, content=body, headers=dict(headers), trust_env=False, timeout=5)
    except httpx.ConnectError:
        return False
    except httpx.TransportError:
        return True
    return True


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The receiver is told first."""
        yield


class ServedReceiver:
    """A receiver under uvicorn, with a consumer's methods. Dead letters are files in a folder."""

    def __init__(self, port: int, letters: Path, handler: Any, *, is_async: bool, **options: Any) -> None:
        def store(message: Delivery, decision: Decision) -> None:
            (letters / f"{time.time_ns()}").write_bytes(pickle.dumps((message, decision.reason)))

        async def store_async(message: Delivery, decision: Decision) -> None:
            store(message, decision)

        self._receiver = WebhookReceiver(
            handler, SECRET, dead_letter=store_async if is_async else store, **options
        )
        config = uvicorn.Config(self._receiver, log_level="critical", access_log=False)
        self._server = _Server(config)
        self._receiver.listener.on_stop(self._end)
        self._socket = socket.create_server((_HOST, port), reuse_port=True)

    async def serve(self) -> None:
        """Take messages until `stop`."""
        await self._server.serve(sockets=[self._socket])

    def run(self) -> None:
        """The same, here; in the main thread until SIGTERM."""
        is_main = threading.current_thread() is threading.main_thread()
        listener = self._receiver.listener
        with listener.stopping_on_sigterm(signal.SIGINT) if is_main else nullcontext():
            asyncio.run(self.serve())

    def stop(self) -> None:
        """Stop."""
        self._receiver.stop()

    def _end(self) -> None:
        self._server.should_exit = True


class AsyncServedReceiver(ServedReceiver):
    """The same, awaited."""

    async def run(self) -> None:  # type: ignore[override]
        await self.serve()
