"""A RabbitMQ that blocks publishers, one with a queue that confirms nothing, and a user without rights."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from tests.servers.rabbitmq import LocalRabbit


@contextmanager
def lacking_memory(server: LocalRabbit) -> Iterator[None]:
    """During the block the server's memory limit is exceeded, whatever it uses."""
    server.control("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        yield
    finally:
        server.control("set_vm_memory_high_watermark", "0.6")


@contextmanager
def standing_still(server: LocalRabbit, queue: str) -> Iterator[None]:
    """During the block the queue accepts messages and confirms none, as a quorum queue without a majority."""
    find = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>))'
    server.control("eval", f"{find}, sys:suspend(amqqueue:get_pid(Q)).")
    try:
        yield
    finally:
        server.control("eval", f"{find}, sys:resume(amqqueue:get_pid(Q)).")


def without_rights(server: LocalRabbit) -> str:
    """The name and password of a user who may log in and nothing else."""
    name = f"user-{uuid4()}"
    server.control("add_user", name, "secret")
    server.control("set_permissions", name, "", "", "")
    return f"{name}:secret"
