"""The services that the tests use. Each is found once and kept until the end of the run; a broker until
`stop_brokers`."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import TypeVar

from tests.servers import (
    elasticmq,
    kafka,
    mariadb,
    mysql,
    nats,
    pgbouncer,
    postgresql,
    rabbitmq,
    redis,
    rocketmq,
    sqlite,
)
from tests.servers.kafka import KafkaServer
from tests.servers.pgbouncer import Pooler
from tests.servers.rocketmq import RocketServer
from tests.servers.server import Missing, Server, Service

FINDERS = {
    "postgresql": postgresql.find,
    "mariadb": mariadb.find,
    "mysql": mysql.find,
    "sqlite": sqlite.find,
}
NAMES = tuple(FINDERS)
DRIVERS = {"psycopg2": "postgresql", "asyncpg": "postgresql", "mysqldb": "mariadb"}
"""Further drivers, each with the server that it is for: one more row for the tests of the guarantees."""
MODULES = {"mysqldb": "MySQLdb"}
"""Those that a compiler has to build, and that are tested where they are installed."""
OTHERS = (
    "chromium",
    "debian",
    "elasticmq",
    "galera",
    "kafka",
    "nats",
    "pgbouncer",
    "promtool",
    "rabbitmq",
    "redis",
    "rocketmq",
    "spark",
)
"""What else can be required: they are no SQL databases, and have fixtures of their own."""

S = TypeVar("S", Server, Service, KafkaServer, RocketServer, Pooler)
_stops: list[Callable[[], None]] = []
_broker_stops: list[Callable[[], None]] = []


@cache
def find(name: str) -> Server | Missing:
    """The SQL server of that name, or for that driver, started if necessary, or the reason why there is
    none."""
    if name in DRIVERS:
        if name in MODULES and find_spec(MODULES[name]) is None:
            return Missing("it is not installed")
        found = find(DRIVERS[name])
        return found if isinstance(found, Missing) else replace(found, driver=name)
    return _kept(FINDERS[name]())


@cache
def find_redis() -> Service | Missing:
    """Redis, started if necessary, or the reason why there is none."""
    return _kept(redis.find())


@cache
def find_kafka() -> KafkaServer | Missing:
    """Kafka, started if necessary, or the reason why there is none."""
    return _kept(kafka.find(), _broker_stops)


@cache
def find_rabbit() -> Service | Missing:
    """RabbitMQ, started if necessary, or the reason why there is none."""
    return _kept(rabbitmq.find(), _broker_stops)


@cache
def find_rocket() -> RocketServer | Missing:
    """RocketMQ, started if necessary, or the reason why there is none."""
    return _kept(rocketmq.find(), _broker_stops)


@cache
def find_elasticmq() -> Service | Missing:
    """ElasticMQ, started if necessary, or the reason why there is none."""
    return _kept(elasticmq.find(), _broker_stops)


@cache
def find_nats() -> Service | Missing:
    """NATS, started if necessary, or the reason why there is none."""
    return _kept(nats.find(), _broker_stops)


@cache
def find_pooler() -> Pooler | Missing:
    """PgBouncer in front of the tests' PostgreSQL, started if necessary, or the reason why there is none."""
    return _kept(pgbouncer.find(find("postgresql")))


def _kept(found: S | Missing, stops: list[Callable[[], None]] = _stops) -> S | Missing:
    """Register a server that was found, so that `stop_all` stops it."""
    if not isinstance(found, Missing):
        stops.append(found.stop)
    return found


def stop_all() -> None:
    """Stop every server that was started here."""
    stop_brokers()
    while _stops:
        _stops.pop()()
    find.cache_clear()
    find_redis.cache_clear()
    find_pooler.cache_clear()


def stop_brokers() -> None:
    """Stop the brokers that were started here. A RocketMQ without work uses 7 % of a core, a Kafka 3 %; the
    next test that looks for one starts it again."""
    while _broker_stops:
        _broker_stops.pop()()
    find_elasticmq.cache_clear()
    find_kafka.cache_clear()
    find_nats.cache_clear()
    find_rabbit.cache_clear()
    find_rocket.cache_clear()


def is_required(name: str) -> bool:
    """Whether ``REQUIRE_SERVICES`` ("all", or names separated by commas) names this service: then its tests
    fail instead of being skipped.

    Raises ValueError for an unknown name: a misspelt requirement would require nothing.
    """
    required = set(filter(None, os.environ.get("REQUIRE_SERVICES", "").split(",")))
    if unknown := required - {"all", *NAMES, *OTHERS}:
        raise ValueError(f"REQUIRE_SERVICES names no service: {', '.join(sorted(unknown))}")
    return bool(required & {"all", name}) and name not in MODULES
