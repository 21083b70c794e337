"""A RabbitMQ that blocks publishers."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.rabbitmq import PROGRAM, LocalRabbit


@contextmanager
def lacking_memory(server: LocalRabbit) -> Iterator[None]:
    """For the block, any memory is more than the server may have."""
    _set_limit(server, "absolute", "1MB")
    try:
        yield
    finally:
        _set_limit(server, "0.6")


def _set_limit(server: LocalRabbit, *limit: str) -> None:
    environment = os.environ | {name: str(value) for name, value in server._environment().items()}
    command = [str(PROGRAM.with_name("rabbitmqctl")), "set_vm_memory_high_watermark", *limit]
    subprocess.run(command, env=environment, check=True, capture_output=True)
