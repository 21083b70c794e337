"""Webhooks: no broker, but an endpoint for each step. The processes that receive share its port."""

import socket
from dataclasses import dataclass, field

import uvicorn

from examples.embedded_postgres import free_port
from examples.order_chain import worker
from examples.order_chain.shop import TOPICS
from examples.order_chain.steps import Step
from inbox.webhook import WebhookReceiver
from outbox.webhook import WebhookEndpoint, WebhookPublisher

SECRET = "whsec_dGhlIHNlY3JldCBvZiB0aGUgY2hhaW4gb2Ygb3JkZXJz"  # noqa: S105 - of this machine only
HOST = "127.0.0.1"


class _Receiving:
    """A receiver behind a server of its own, as the chain runs consumers."""

    def __init__(self, handler: Step, port: int) -> None:
        receiver = WebhookReceiver(
            handler, SECRET, concurrency=worker.AT_ONCE, backoff=worker.BACKOFF, grace=worker.TIMEOUT
        )
        self._server = uvicorn.Server(uvicorn.Config(receiver, log_level="critical", access_log=False))
        self._socket = socket.create_server((HOST, port), reuse_port=True)

    def run(self) -> None:
        """Take messages until `stop`."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Let `run` end."""
        self._server.should_exit = True


@dataclass(frozen=True, slots=True)
class Hooks:
    """The endpoints' ports, by topic."""

    ports: dict[str, int] = field(default_factory=lambda: {topic: free_port() for topic in TOPICS})

    def publisher(self) -> WebhookPublisher:
        """A publisher to the endpoints."""
        endpoints = {
            topic: WebhookEndpoint(f"http://{HOST}:{port}/", SECRET) for topic, port in self.ports.items()
        }
        return WebhookPublisher(endpoints, allow=[HOST], timeout=worker.TIMEOUT)

    def consumer(self, topic: str, handler: Step) -> _Receiving:
        """A receiver at the topic's endpoint."""
        return _Receiving(handler, self.ports[topic])

    def create(self) -> None:
        """Nothing: endpoints are where somebody listens."""

    def delete(self) -> None:
        """Nothing."""

    def waiting(self) -> int:
        """None: all waiting messages are in the outbox."""
        return 0

    def dead(self) -> int:
        """None: dead letters are in the outbox."""
        return 0
