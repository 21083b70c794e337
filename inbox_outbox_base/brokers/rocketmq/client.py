"""RocketMQ's client, rocketmq-python-client, imported without its side effects on the application.

Its import closes the logging handlers that the application has opened. It also makes a folder for its own log
in the user's home, and fails if it cannot write there. One module of the client does both; this replaces that
module unless the application has already imported the client.
"""

import logging
import sys
from types import ModuleType
from typing import Any

LOGGER = "rocketmq-python-client"
"""The name of the client's logger, whose lines go to the application's logging."""


def _keep_logging_as_it_is() -> None:
    module = ModuleType("rocketmq.v5.log.log_config")
    logger = logging.getLogger(LOGGER)
    logger.addHandler(logging.NullHandler())  # without any handler, Python would write to stderr
    vars(module)["logger"] = logger
    sys.modules.setdefault(module.__name__, module)


_keep_logging_as_it_is()

import grpc  # noqa: E402 - after that
import rocketmq  # noqa: E402
from grpc import aio  # noqa: E402
from rocketmq import grpc_protocol as protocol  # noqa: E402
from rocketmq.v5.client.connection import RpcEndpoints  # noqa: E402
from rocketmq.v5.util import SDK_VERSION, ClientId, Signature  # noqa: E402

__all__ = [
    "LOGGER",
    "SDK_VERSION",
    "ClientId",
    "RpcEndpoints",
    "Signature",
    "aio",
    "described",
    "grpc",
    "protocol",
    "rocketmq",
    "text_of",
]


def described(status: Any) -> str:
    """Name and text of RocketMQ's status."""
    code = status.code
    return f"{protocol.Code.Name(code) if code in protocol.Code.values() else code}: {status.message}"


def text_of(error: Exception) -> str:
    """What gRPC says, on one line."""
    if isinstance(error, grpc.RpcError) and hasattr(error, "details"):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}".rstrip(": ")
