"""A relay to RocketMQ in its own process, so that other processes do not load its client."""

from multiprocessing.connection import Connection as Pipe

from sqlalchemy import URL

from outbox.rocketmq import RocketMQPublisher
from tests.support.relay.worker import run_relay


def rocketmq_relay(pipe: Pipe, url: URL, name: str, lease: float, address: str) -> None:
    """Relay into topics of RocketMQ until SIGTERM."""
    run_relay(pipe, url, RocketMQPublisher(f"rocketmq://{address}", timeout=lease / 2), name, lease)
