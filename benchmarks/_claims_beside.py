"""Status-table mode against two libraries that do the same work, on the same server, in the same run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from sqlalchemy import Column, Engine, Integer, MetaData, Table, Text, insert

from inbox import RedisStore, SqlStore, StatusInbox, Store, schema

from ._business import CONSUMER, new_keys
from ._lab import Lab
from ._measure import Operation, Report, figure, ratios, version_of
from ._redis import running_redis

WORKERS = (1, 8)
order = Table("order", MetaData(), Column("key", Text, primary_key=True), Column("amount", Integer))


def beside_powertools(lab: Lab) -> Report:
    """Against the idempotency of AWS Lambda Powertools: an empty handler, records in the same Redis."""
    report, library = Report(), f"Powertools {version_of('aws-lambda-powertools')}"
    with running_redis() as client:
        variants = {"inbox": _claim(RedisStore(client)), "powertools": _powertools(client)}
        name = f"{library}, Redis {client.info()['redis_version']}"
        for workers in WORKERS:
            rates = lab.compare(f"Redis, {workers} workers", variants, workers=workers)
            report.figures.append(_figure(name, ratios(rates, "inbox", "powertools"), workers))
    return report


def beside_dbos(lab: Lab) -> Report:
    """Against a DBOS workflow with one transaction: one row of the application's, in the same PostgreSQL."""
    report, name = Report(), f"DBOS {version_of('dbos')}, PostgreSQL"
    with lab.database("dbos", connections=max(WORKERS) * 2) as engine:
        schema.metadata.create_all(engine)
        order.create(engine)
        with _dbos(engine) as with_dbos:
            variants = {"inbox": _transact(engine), "dbos": with_dbos}
            for workers in WORKERS:
                rates = lab.compare(f"PostgreSQL, {workers} workers", variants, workers=workers)
                report.figures.append(_figure(name, ratios(rates, "inbox", "dbos"), workers))
    return report


def _figure(name: str, found: list[float], workers: int) -> Any:
    plural = "worker" if workers == 1 else "workers"
    return figure(f"rate / {name}, {workers} {plural}", found, at_least=2)


def _claim(store: Store) -> Operation:
    inbox, numbers = StatusInbox(CONSUMER, store=store), new_keys()

    def work(worker: int) -> int:
        with inbox.claim(f"order-{next(numbers)}") as claim:
            claim.result = {"amount": 1}
        return 1

    return work


def _powertools(client: "redis.Redis") -> Operation:
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

    def handle_order(*, message: dict[str, Any]) -> dict[str, int]:
        return {"amount": 1}

    handle = idempotent_function(
        handle_order,
        data_keyword_argument="message",
        persistence_store=RedisCachePersistenceLayer(client=client),
        config=IdempotencyConfig(event_key_jmespath="key"),
    )
    numbers = new_keys()

    def work(worker: int) -> int:
        handle(message={"key": f"order-{next(numbers)}"})
        return 1

    return work


def _transact(engine: Engine) -> Operation:
    inbox, numbers = StatusInbox(CONSUMER, store=SqlStore(engine)), new_keys()
    add = insert(order)

    def work(worker: int) -> int:
        key = f"order-{next(numbers)}"
        with inbox.claim(key) as claim:
            claim.transact("insert", lambda connection: _add(connection, add, key))
        return 1

    return work


def _add(connection: Any, add: Any, key: str) -> int:
    connection.execute(add, {"key": key, "amount": 1})
    return 1


@contextmanager
def _dbos(engine: Engine) -> Iterator[Operation]:
    from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource

    url = engine.url.render_as_string(hide_password=False)
    DBOS(config={"name": "benchmark", "system_database_url": url, "log_level": "ERROR"})
    source = SQLAlchemyDatasource.create(url, engine=engine)
    add = insert(order)

    def add_order(key: str) -> int:
        return _add(source.sql_session(), add, key)

    step = source.transaction(add_order, isolation_level="READ COMMITTED")

    def handle_order(key: str) -> int:
        return int(step(key))

    handle = DBOS.workflow()(handle_order)
    DBOS.launch()
    numbers = new_keys()

    def work(worker: int) -> int:
        key = f"dbos-{next(numbers)}"
        with SetWorkflowID(key):
            handle(key)
        return 1

    try:
        yield work
    finally:
        DBOS.destroy()
