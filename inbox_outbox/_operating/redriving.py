"""`inbox-outbox redrive`: move a broker's dead letters back."""

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from inbox import Delivery, Status, Store, message_id, message_key, show_message
from inbox.errors import InvalidKey, InvalidOption
from inbox_outbox._connect import Json, Prefix, Schema, StoreUrl, store_at
from inbox_outbox._exit import UNFINISHED
from inbox_outbox._operating.progress import ProgressLine
from inbox_outbox._running.brokers import kafka_settings, naming, remember, remember_secret
from inbox_outbox_base.words.counted import counted
from inbox_outbox_base.words.redriven import Redriven

from .deciding import say

_EXPECTED = (
    "amqp://user@host/vhost, kafka://host:9092?setting=value, nats://host:4222, redis://host:6379, "
    "rocketmq://host:8081, or sqs://sqs.eu-west-1.amazonaws.com"
)


class KeyedBy(StrEnum):
    """What the handler's inbox uses as its key."""

    ID = "id"
    KEY = "key"


def redrive(
    dead_letters: Annotated[
        str,
        typer.Argument(
            help="The queue, topic or stream with the dead letters, such as orders.dead.",
            metavar="DEAD_LETTERS",
        ),
    ],
    broker: Annotated[
        str,
        typer.Option(
            envvar="INBOX_OUTBOX_BROKER", show_envvar=True, metavar="URL", help=f"The broker: {_EXPECTED}."
        ),
    ],
    into: Annotated[
        str | None,
        typer.Option(
            help="The queue, topic or stream to which they go; by default where they came from.",
            metavar="NAME",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="RocketMQ: a consumer group for this alone; it must exist.", metavar="NAME"),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Only the message with this id; may be repeated.", metavar="ID"),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", help="Only messages of this key; may be repeated.", metavar="KEY"),
    ] = None,
    retried: Annotated[
        str | None,
        typer.Option(
            help="Only messages that this consumer of status-table mode will run again: those that were"
            " retried. With --url.",
            metavar="CONSUMER",
        ),
    ] = None,
    keyed_by: Annotated[
        KeyedBy, typer.Option(help="With --retried: what its keys are, id or key.", metavar="WHAT")
    ] = KeyedBy.ID,
    url: StoreUrl = "",
    schema: Schema = None,
    prefix: Prefix = "inbox",
    limit: Annotated[int | None, typer.Option(help="Move at most this many.", metavar="NUMBER")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count; move nothing.")] = False,
    json: Json = False,
) -> None:
    """Move dead letters of RabbitMQ, Kafka, NATS, RocketMQ, SQS or Redis back, to be handled again."""
    moving, where = _mover(broker, group)
    with ExitStack() as opened:
        wanted: list[Callable[[Delivery], bool]] = []
        if ids:
            wanted.append(lambda message: message.id in ids)
        if keys:
            wanted.append(lambda message: message.key in keys)
        if retried is not None:
            if not url:
                raise InvalidOption("--retried: expected --url as well, the consumer's database or Redis")
            store = opened.enter_context(store_at(url, schema, prefix))
            key_of = message_id if keyed_by is KeyedBy.ID else message_key
            wanted.append(lambda message: _will_run(store, retried, key_of(message)))
        opened.enter_context(ProgressLine(f"reading {dead_letters}"))
        only = (lambda message: all(each(message) for each in wanted)) if wanted else None
        with naming(url="--broker", to="--into"):
            done = moving(where, dead_letters, to=into, only=only, limit=limit, dry_run=dry_run)
    say(json, asdict(done), _described(done, dry_run=dry_run))
    if done.failed:
        raise typer.Exit(UNFINISHED)


def _mover(broker: str, group: str | None) -> tuple[Callable[..., Redriven], Any]:
    """The function for this broker, and the address as it takes it."""
    scheme, _, rest = broker.partition("://")
    module = _MODULES.get(scheme)
    if module is None or not rest:
        raise InvalidOption(f"--broker: expected {_EXPECTED}")
    if module != "rocketmq" and group is not None:
        raise InvalidOption(f"--group={group!r}: expected only with RocketMQ")
    if module == "rocketmq" and group is None:
        raise InvalidOption("--group: expected a consumer group for this alone, which exists")
    if module == "rabbitmq":
        remember(unquote(_password(broker)))
    elif module != "kafka":
        remember_secret(broker)
    moving: Callable[..., Redriven] = importlib.import_module(f"inbox.{module}").redrive
    given = {} if group is None else {"group": group}
    return partial(moving, **given), kafka_settings(rest) if module == "kafka" else broker


_MODULES = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "kafka": "kafka",
    "nats": "nats",
    "redis": "redis_streams",
    "rediss": "redis_streams",
    "rocketmq": "rocketmq",
    "rocketmqs": "rocketmq",
    "sqs": "sqs",
    "sqs+http": "sqs",
    "tls": "nats",
}
"""By the scheme of the URL, the public module with its `redrive`."""


def _password(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:
        raise InvalidOption(f"--broker: expected {_EXPECTED}") from None


def _will_run(store: Store, consumer: str, key: str) -> bool:
    """Whether the next delivery of the message runs."""
    try:
        record = show_message(store, consumer, key)
    except InvalidKey:  # which is why it is dead
        return False
    return record is None or record.status is Status.FAILED


def _described(done: Redriven, *, dry_run: bool) -> str:
    were = "would be" if dry_run else "was" if done.moved == 1 else "were"
    stay = "stays" if done.left == 1 else "stay"
    text = f"{counted(done.moved, 'dead letter')} {were} moved back, {done.left:,} {stay}"
    if done.failed:
        text += f"; {done.failed:,} could not be moved back: the log names them"
    return text
