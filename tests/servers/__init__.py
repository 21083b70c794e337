"""Real database servers for the tests, each started at most once a test run.

They are looked for in a fixed order: an address in the environment, Docker, a server program on
this machine; PostgreSQL's comes with a Python package. No database is imitated.
"""

from tests.servers.catalogue import (
    DRIVERS,
    NAMES,
    find,
    find_elasticmq,
    find_kafka,
    find_nats,
    find_pooler,
    find_rabbit,
    find_redis,
    find_rocket,
    is_required,
    stop_all,
    stop_brokers,
)
from tests.servers.pgbouncer import Pooler
from tests.servers.server import ASYNC_DRIVERS, Missing, Server, Service

__all__ = [
    "ASYNC_DRIVERS",
    "DRIVERS",
    "NAMES",
    "Missing",
    "Pooler",
    "Server",
    "Service",
    "find",
    "find_elasticmq",
    "find_kafka",
    "find_nats",
    "find_pooler",
    "find_rabbit",
    "find_redis",
    "find_rocket",
    "is_required",
    "stop_all",
    "stop_brokers",
]
