"""A Celery application, and a worker that runs its task: `python -m celery --app ...:app worker`.

Its addresses are in the environment. The task bills an order; orders of other names misbehave.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import Connection, create_engine

from inbox import Backoff, Decision, Inbox, Outcome
from inbox.celery import task
from tests.support import accounts

FOLDER = Path(os.environ["CELERY_TEST_FOLDER"])
app = Celery("shop", broker=os.environ["CELERY_TEST_BROKER"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    task_default_queue=os.environ["CELERY_TEST_QUEUE"],
    worker_prefetch_multiplier=1,
)
engine = create_engine(os.environ["CELERY_TEST_DATABASE"])
inbox = Inbox("billing", wait=0)


def put_away(request: Any, decision: Decision) -> None:
    """Store a dead letter."""
    (FOLDER / f"dead-{request.id}").write_text(json.dumps([*request.args, decision.reason]))


@inbox.handler(engine, key=lambda message: message[0], payload=lambda message: message[1])
def bill(connection: Connection, message: tuple[str, int]) -> str:
    """Add to the account, which is not idempotent."""
    order, amount = message
    is_first = not (seen := FOLDER / f"seen-{order}").exists()
    seen.touch()
    if order == "fails" and is_first:
        raise RuntimeError("fails once")
    accounts.add(connection, amount=amount)
    if order == "dies" and is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    if order == "slow" and is_first:
        time.sleep(30)
    return f"billed {order}"


# With one attempt a failure is final: the soft time limit, a message in flight and a lost worker are none.
listener = inbox.listener(
    backoff=Backoff(first=0.1, longest=0.1),
    failures=lambda request: 0 if request.args[0] == "fails" else 1,
    max_attempts=2,
    dead_letter=put_away,
)


@task(app, listener, name="bill", soft_time_limit=2)
def bill_order(order: str, amount: int) -> Outcome:
    """Bill an order."""
    with (FOLDER / f"runs-{order}").open("a") as file:
        file.write("x")
    return bill((order, amount))
