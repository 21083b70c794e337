"""From an outbox to an inbox over HTTP: whatever fails, a message takes effect once, and none is lost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event

from examples.embedded_postgres import free_port
from inbox import Delivery
from inbox.webhook import WebhookReceiver
from outbox import Relay
from outbox.webhook import WebhookEndpoint, WebhookPublisher
from tests.support import accounts
from tests.support.brokers.consumers import SOON, running
from tests.support.brokers.webhook_books import by_status, once
from tests.support.brokers.webhook_endpoint import LOCAL
from tests.support.brokers.webhook_program import SECRET
from tests.support.brokers.webhook_serving import serving
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, count, publish
from tests.support.processes import wait_until
from tests.support.proxy import TcpProxy

NAMES = ["a", "b", "c"]


@contextmanager
def relaying(engine: Engine, url: str, **options: Any) -> Iterator[None]:
    """A relay of three messages, each of a key of its own, to this endpoint."""
    publish(engine, *NAMES)
    publisher = WebhookPublisher(WebhookEndpoint(url, SECRET), allow=LOCAL, **{"timeout": 5, **options})
    with running(Relay(engine, publisher, lease=12, backoff=SOON, max_attempts=20)):
        yield
    publisher.close()


def all_arrive(engine: Engine) -> None:
    """Wait until the outbox is empty; each message has had its effect once, and none is dead."""
    wait_until(lambda: count(engine, TABLES.message) == 0)
    assert accounts.totals(engine) == dict.fromkeys(NAMES, 1)
    assert count(engine, TABLES.dead) == 0


@pytest.mark.parametrize("forward", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_answer_that_is_lost(postgres: Database, forward: bool) -> None:
    """The connection breaks with a request, which the receiver has got or not: it is sent again."""
    engine = accounts.make(postgres.engine(), NAMES)
    with serving(WebhookReceiver(once(engine), SECRET)) as url:
        place = urlsplit(url)
        with TcpProxy(str(place.hostname), int(place.port or 0)) as proxy:
            proxy.cut_on(lambda data: data.startswith(b"POST"), forward=forward)
            with relaying(engine, f"http://127.0.0.1:{proxy.port}/hooks"):
                all_arrive(engine)
            assert proxy.was_cut.is_set()


@pytest.mark.parametrize("books", [once, pytest.param(by_status, marks=pytest.mark.long)])
def test_a_handler_that_takes_longer_than_a_send(postgres: Database, books: Any) -> None:
    """The request is given up and sent again while its handler runs; that effect is the only one."""
    runs = []

    def slowly(message: Delivery) -> None:
        runs.append(message.id)
        time.sleep(0.7)

    engine = accounts.make(postgres.engine(), NAMES)
    with serving(WebhookReceiver(books(engine, slowly), SECRET)) as url:
        with relaying(engine, url, timeout=0.4):
            all_arrive(engine)
        assert len(runs) == len(NAMES)


def test_the_database_of_the_receiver_is_away(postgres: Database) -> None:
    """No message is to blame, and none becomes a dead letter, however often it is sent."""
    away, tried = True, 0
    engine = accounts.make(postgres.engine(), NAMES)
    own = create_engine(postgres.url)

    @event.listens_for(own, "do_connect")
    def connect(_: Any, __: Any, ___: Any, given: dict[str, Any]) -> None:
        nonlocal tried
        if away:
            tried += 1
            psycopg.connect(f"host=127.0.0.1 port={free_port()}")

    with serving(WebhookReceiver(once(own), SECRET, backoff=SOON)) as url, relaying(engine, url):
        wait_until(lambda: tried >= 4)
        assert accounts.totals(engine) == dict.fromkeys(NAMES, 0)
        away = False
        all_arrive(engine)
    own.dispose()
