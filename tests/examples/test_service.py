"""The service of docs/start.md: its migrations, its processes, and what a client and an accountant see."""

import os
import sys
from pathlib import Path
from subprocess import Popen, run
from uuid import uuid4

import httpx
from sqlalchemy import Engine, func, select, text

from examples.embedded_postgres import free_port
from examples.service.models import Invoice, Order
from tests.support.brokers.rabbit_queues import Queues
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.processes import wait_until
from tests.support.program import ROOT

pytest_plugins = ["tests.support.brokers.rabbit_fixtures"]

NEW = {"item": "tea", "cents": 500}


@on("postgresql")
def test_an_order_is_stored_and_billed_once(database: Database, queues: Queues, tmp_path: Path) -> None:
    """A request that is repeated gets one answer, also after a database error that passes. The
    consumer is killed when it may have the message, and started again: each order has one invoice."""
    engine = database.engine()
    topic, port = f"test-{uuid4()}", free_port()
    queues.make(topic)
    impatient = database.url.update_query_dict({"options": "-c lock_timeout=300"})
    environment = {
        **os.environ,
        "SHOP_DATABASE": impatient.render_as_string(hide_password=False),
        "SHOP_BROKER": queues.url,
        "SHOP_TOPIC": topic,
    }
    migrate = [sys.executable, "-m", "alembic", "-c", "examples/service/alembic.ini"]
    run([*migrate, "upgrade", "head"], cwd=ROOT, env=environment, check=True, timeout=60)
    run([*migrate, "check"], cwd=ROOT, env=environment, check=True, timeout=60)

    def start(*command: str) -> Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            return Popen([sys.executable, "-m", *command], cwd=ROOT, env=environment, stdout=log, stderr=log)

    address = f"http://127.0.0.1:{port}"
    serve = ("uvicorn", "examples.service.shop:app", f"--port={port}", "--log-level=warning")

    def post(key: str, **changes: object) -> httpx.Response:
        return httpx.post(
            f"{address}/orders", json=NEW | changes, headers={"Idempotency-Key": key}, timeout=10
        )

    shop, billing = start(*serve), start("examples.service.billing")
    try:
        wait_until(lambda: is_up(address))
        first = post("request-1")
        assert first.status_code == 201
        assert post("request-1").json() == first.json()
        assert post("request-1", cents=900).status_code == 422
        billing.kill()
        billing.wait()
        billing = start("examples.service.billing")
        assert post("request-1").json() == first.json()
        with engine.begin() as connection:
            connection.execute(text("LOCK TABLE shop_order IN EXCLUSIVE MODE"))
            refused = post("request-2", item="coffee")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert post("request-2", item="coffee").status_code == 201
        wait_until(lambda: count(engine, Invoice) == 2)
        assert count(engine, Order) == 2
    finally:
        for each in (shop, billing):
            each.terminate()
            each.wait(30)
    assert "Traceback" not in (tmp_path / "log").read_text()


def is_up(address: str) -> bool:
    """The service answers."""
    try:
        return httpx.get(f"{address}/openapi.json").status_code == 200
    except httpx.TransportError:
        return False


def count(engine: Engine, model: type[Invoice] | type[Order]) -> int | None:
    """The rows of a table."""
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(model))
