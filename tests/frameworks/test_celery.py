"""Celery: no message of a task is lost, whatever the inbox says about it, and whatever ends the attempt."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inbox import Inbox, Outcome, Verdict
from inbox.celery import task
from inbox.errors import InvalidOption
from tests.support import accounts
from tests.support.brokers.rabbit_queues import Queues
from tests.support.database import Database
from tests.support.processes import wait_until
from tests.support.program import ROOT

celery = pytest.importorskip("celery", reason="Celery is not installed here: make frameworks")

pytest_plugins = ["tests.support.brokers.rabbit_fixtures"]


@contextmanager
def worker(environment: dict[str, str], log: Path) -> Iterator[None]:
    """A worker with two processes, while the block runs."""
    command = [
        sys.executable, "-m", "celery", "--app", "tests.frameworks.celery_worker", "worker",
        "--concurrency", "2", "--loglevel", "info", "--without-gossip", "--without-mingle",
    ]  # fmt: skip
    environment = {**os.environ, **environment}
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def test_a_worker_loses_nothing(queues: Queues, postgres: Database, tmp_path: Path) -> None:
    """A message in flight, a failure, a process that dies and a soft time limit lead to another attempt; a
    duplicate is acknowledged; another payload is a dead letter. All that was taken took effect once."""
    engine, queue = accounts.make(postgres.engine()), queues.new()
    environment = {
        "CELERY_TEST_BROKER": queues.url,
        "CELERY_TEST_DATABASE": postgres.url.render_as_string(hide_password=False),
        "CELERY_TEST_FOLDER": str(tmp_path),
        "CELERY_TEST_QUEUE": queue,
    }
    app = celery.Celery(broker=queues.url, set_as_current=False)
    app.conf.broker_transport_options = {"confirm_publish": True}

    def send(order: str, amount: int) -> None:
        app.send_task("bill", (order, amount), queue=queue)

    def runs(order: str) -> int:
        file = tmp_path / f"runs-{order}"
        return len(file.read_text()) if file.exists() else 0

    log = tmp_path / "log"
    with worker(environment, log), engine.connect() as other:
        assert Inbox("billing").accept(other, "held", payload=1)
        for order in ("1", "1", "held", "fails", "dies", "slow"):
            send(order, 1)
        wait_until(lambda: runs("held") > 2)
        other.rollback()
        wait_until(lambda: accounts.total(engine) == 5)
        send("1", 7)
        wait_until(lambda: bool(list(tmp_path.glob("dead-*"))))
    assert accounts.total(engine) == 5
    assert (runs("fails"), runs("dies"), runs("slow")) == (2, 2, 2)
    (dead,) = [json.loads(file.read_text()) for file in tmp_path.glob("dead-*")]
    assert dead == ["1", 7, "mismatch"]
    assert queues.count(queue) == 0


def never(request: Any, decision: Any) -> None:
    """A place for dead letters."""


def in_flight() -> Outcome:
    """Answer as an inbox with on_refusal="return"."""
    return Outcome(Verdict.IN_FLIGHT)


def test_settings_that_lose_messages_are_refused(queues: Queues) -> None:
    """They are refused by name: given to the decorator, or found in the application's configuration when it
    is finalized, such as publishing without confirmation."""
    inbox, confirmed = Inbox("billing"), {"broker_transport_options": {"confirm_publish": True}}
    safe = inbox.listener(dead_letter=never)
    with pytest.raises(InvalidOption, match="listener: expected one with dead_letter="):
        task(celery.Celery(), inbox.listener())
    wrong: dict[str, Any] = {"acks_late": False, "max_retries": 3, "autoretry_for": (OSError,)}
    for name, value in wrong.items():
        with pytest.raises(InvalidOption, match=f"{name}="):
            task(celery.Celery(), safe, **{name: value})
    for conf, refused in (
        ({}, "confirm_publish"),
        ({**confirmed, "task_annotations": {"*": {"max_retries": 5}}}, "max_retries=5, expected None"),
    ):
        app = celery.Celery(broker=queues.url, set_as_current=False)
        app.conf.update(conf)
        task(app, safe, name="bill")(in_flight)
        with pytest.raises(InvalidOption, match=refused):
            app.finalize()


def test_what_cannot_be_published_again_goes_back(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry whose message the broker does not take puts the message back to its queue; Celery itself would
    reject it, and RabbitMQ would delete it."""
    app = celery.Celery(broker=queues.url, set_as_current=False)
    app.conf.broker_transport_options = {"confirm_publish": True}
    bill = task(app, Inbox("billing").listener(dead_letter=never), name="bill")(in_flight)
    assert bill().verdict is Verdict.IN_FLIGHT  # called directly

    def fail(*_: object, **__: object) -> None:
        raise OSError("the broker is away")

    monkeypatch.setattr("celery.canvas.Signature.apply_async", fail)
    bill.push_request(called_directly=False, id="1", args=(), kwargs={}, retries=0)
    with pytest.raises(celery.exceptions.Reject) as caught:
        bill()
    assert caught.value.requeue
