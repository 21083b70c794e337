"""Django: messages are taken and published in the transactions of its ORM."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import select

import inbox.schema
import outbox.schema
from inbox import Action, Inbox, Listener, Verdict, migration
from inbox.django import connection, downgrade, handler, upgrade
from inbox.errors import TransactionAborted, TransactionEnded, UnsupportedDatabase, UnusableConnection
from inbox_outbox_base.tables.inbox import REVISION
from outbox import Outbox, Relay
from outbox._waking import in_process
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import Recorder

pytest.importorskip("django", reason="Django is not installed here: make frameworks")
from django.apps.registry import apps
from django.conf import settings
from django.db import IntegrityError, connections, models, transaction
from django.db.migrations import Migration, RunPython
from django.db.migrations.state import ProjectState

settings.configure(DATABASES={}, USE_TZ=True)
apps.populate([])
BACKENDS = {"postgresql": "django.db.backends.postgresql", "sqlite": "django.db.backends.sqlite3"}
both = on("postgresql", "sqlite")
postgresql = on("postgresql")


class Invoice(models.Model):  # type: ignore[misc]
    """A table of the ORM's; a second invoice of an order is an error."""

    order = models.CharField(max_length=20, primary_key=True)

    class Meta:
        """Where it is."""

        app_label = "shop"


@pytest.fixture
def django(database: Database) -> Iterator[Any]:
    """Django's connection to an empty database, with the ORM's table."""
    url = database.url
    place = {"HOST": url.host, "PORT": url.port, "USER": url.username, "PASSWORD": url.password}
    given = {name: value or "" for name, value in place.items()}
    described = {"ENGINE": BACKENDS[database.name], "NAME": url.database, **given}
    connections.settings = connections.configure_settings({"default": described})
    with suppress(AttributeError):  # there was none
        del connections["default"]
    wrapper = connections["default"]
    with wrapper.schema_editor() as editor:
        editor.create_model(Invoice)
    migrate(upgrade(REVISION))
    yield wrapper
    wrapper.close()


def migrate(code: Any, reverse: Any = RunPython.noop, *, backwards: bool = False) -> None:
    """Run the step of a migration as Django does."""
    step = Migration("0001_messages", "shop")
    step.operations = [RunPython(code, reverse)]
    with connections["default"].schema_editor(atomic=True) as editor:
        if backwards:
            step.unapply(ProjectState(), editor)
        else:
            step.apply(ProjectState(), editor)


def orders() -> list[str]:
    """The committed invoices."""
    return sorted(Invoice.objects.values_list("order", flat=True))


@both
def test_a_transaction_of_the_orm_takes_and_publishes(django: Any, database: Database) -> None:
    """What accept, take and publish write commits with what the ORM wrote before and after, and is rolled
    back with it; an inner block is rolled back alone. Relays of this process are woken by the COMMIT."""
    billing, published = Inbox("billing"), Outbox()
    with transaction.atomic():
        Invoice.objects.create(order="1")
        opened = connection()
        assert billing.accept(opened, "1", payload={"order": 1}) is Verdict.NEW
        taken = billing.take(opened, "2")
        taken.result = "billed"
        published.publish(opened, topic="orders", payload={"order": 1}, key="1")
        opened.commit()
        with transaction.atomic():
            published.publish(connection(), topic="orders", payload="never")
            Invoice.objects.create(order="never")
            transaction.set_rollback(True)
        opened.rollback()
        opened.close()
        Invoice.objects.create(order="2")
    with transaction.atomic():
        assert billing.accept(connection(), "3") is Verdict.NEW
        transaction.set_rollback(True)
    with transaction.atomic():
        opened = connection()
        assert billing.accept(opened, "1", payload={"order": 1}) is Verdict.DUPLICATE
        assert billing.accept(opened, "1", payload={"order": 2}) is Verdict.MISMATCH
        assert billing.take(opened, "2").result == "billed"
    assert orders() == ["1", "2"]
    engine = database.engine()
    with engine.connect() as other:
        assert other.scalars(select(inbox.schema.tables().message.c.key).order_by("key")).all() == ["1", "2"]
        assert other.scalars(select(outbox.schema.tables().message.c.key)).all() == ["1"]


@postgresql
def test_relays_are_woken_after_the_commit(
    django: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while the transaction is open, nor after one that was rolled back."""
    woken = list[object]()
    monkeypatch.setattr(in_process, "wake_relays", lambda place, hint: woken.append(hint))
    with transaction.atomic():
        Outbox().publish(connection(), topic="orders", payload="1")
        transaction.set_rollback(True)
    with transaction.atomic():
        Outbox().publish(connection(), topic="orders", payload="1")
        assert not woken
    assert len(woken) == 1


@postgresql
def test_nothing_is_remembered_that_is_rolled_back(django: Any, database: Database) -> None:
    """All Connections of one transaction of Django's count as one: what they see is not committed yet."""
    billing = Inbox("billing", remember=10)
    verdicts = []
    for is_kept in (False, True, True):
        with transaction.atomic():
            verdicts.append([billing.accept(connection(), "1") for _ in range(3)])
            transaction.set_rollback(not is_kept)
    first = [Verdict.NEW, Verdict.DUPLICATE, Verdict.DUPLICATE]
    assert verdicts == [first, first, [Verdict.DUPLICATE] * 3]


@both
def test_a_handler_runs_once(django: Any, database: Database) -> None:
    """Its rows of the ORM and the message's row are one transaction; a duplicate has the stored result."""

    @handler(Inbox("billing"), key=lambda order: order)
    def bill(order: str) -> str:
        Invoice.objects.create(order=order)
        if order == "fails":
            raise ZeroDivisionError
        return f"billed {order}"

    assert [(bill("1").verdict, bill("1").result) for _ in range(2)] == [
        (Verdict.NEW, "billed 1"), (Verdict.DUPLICATE, "billed 1")
    ]  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        bill("fails")
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        bill("2")
    assert orders() == ["1"]


@postgresql
def test_a_lost_connection_counts_against_no_message(django: Any, database: Database) -> None:
    """Django wraps the driver's error. The message is delivered again."""

    @handler(Inbox("billing"), key=lambda order: order)
    def bill(order: str) -> None:
        with django.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    decision = Listener(max_attempts=1, failures=lambda _: 0).decide_here("1", bill)
    assert decision.action is Action.RETRY
    assert decision.outcome is not None
    assert not decision.outcome.is_failure


@both
def test_a_handler_that_swallows_an_error_says_so(django: Any, database: Database) -> None:
    """Django alone would roll back, or have PostgreSQL roll back, and the caller would acknowledge a message
    that was lost. With an inner block around it, the error is the body's affair."""
    Invoice.objects.create(order="there")
    kinds = {"inner": transaction.atomic, "flat": lambda: transaction.atomic(savepoint=False)}

    @handler(Inbox("billing"), key=lambda message: f"{message}")
    def bill(kind: str) -> None:
        try:
            with kinds[kind]():
                Invoice.objects.create(order="there")
        except IntegrityError:
            pass
        Invoice.objects.create(order=kind) if kind == "inner" else None

    assert bill("inner").verdict is Verdict.NEW
    with pytest.raises(TransactionAborted):
        bill("flat")

    @handler(Inbox("billing"), key=lambda message: message)
    def end(statement: str) -> None:
        with django.cursor() as cursor:
            cursor.execute(statement)

    with pytest.raises(TransactionEnded):
        end("COMMIT")
    assert orders() == ["inner", "there"]
    with transaction.atomic():
        assert Inbox("billing").accept(connection(), "flat") is Verdict.NEW


@postgresql
def test_an_aborted_transaction_is_no_success(django: Any, database: Database) -> None:
    """PostgreSQL answers ROLLBACK to the COMMIT of such a transaction, and Django raises nothing."""
    Invoice.objects.create(order="there")

    @handler(Inbox("billing"), key=lambda message: message)
    def bill(_: str) -> None:
        with django.cursor() as cursor, suppress(IntegrityError):
            cursor.execute("INSERT INTO shop_invoice VALUES ('there')")

    with pytest.raises(TransactionAborted):
        bill("1")


@both
def test_migrations_of_django_make_and_remove_the_tables(django: Any, database: Database) -> None:
    """Inside the transaction of a migration; a second run changes nothing. A relay finds its tables."""
    migrate(upgrade(REVISION))
    engine = database.engine()
    with engine.connect() as other:
        assert migration.current(other) == REVISION
    assert Relay(engine, Recorder()).run_once() == 0
    migrate(RunPython.noop, downgrade(), backwards=True)
    with engine.connect() as other:
        assert migration.current(other) is None


@postgresql
def test_what_cannot_be_joined_is_refused(
    django: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside a transaction, and on a database or driver that was not tried."""
    with pytest.raises(UnusableConnection, match=r"transaction\.atomic"):
        connection()
    monkeypatch.setattr("inbox.django._engines", {})
    monkeypatch.setattr(type(django), "vendor", "mysql")
    with transaction.atomic(), pytest.raises(UnsupportedDatabase, match="mysql through"):
        connection()
