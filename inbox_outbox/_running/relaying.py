"""`inbox-outbox outbox relay` and `drain`: send messages to a broker."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

import outbox
from inbox_outbox._connect import Json, Schema, Url, engine_at
from inbox_outbox._exit import UNFINISHED
from inbox_outbox._print import as_json
from inbox_outbox._times import length
from inbox_outbox_base.errors import secrets
from inbox_outbox_base.words.counted import counted
from outbox._relaying.settings import SEND_SHARE
from outbox.errors import UnsafeBroker

from .brokers import EXPECTED, WEBHOOK_SECRETS, WebhookOptions, publisher_at, system_of
from .run_relay import RelayOptions, SendCounts, run
from .serving import Exports, Listen, exporting


class AfterDead(StrEnum):
    """What happens to the messages behind a dead one of their key."""

    CONTINUE = "continue"
    HOLD = "hold"


To = Annotated[
    str,
    typer.Option(
        envvar="INBOX_OUTBOX_BROKER", show_envvar=True, metavar="URL", help=f"The broker: {EXPECTED}."
    ),
]
Exchange = Annotated[str, typer.Option(help="RabbitMQ only: the exchange to publish to.", metavar="NAME")]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        help="Webhooks only: a file with the endpoint's secret, or with several on a line each; by default"
        f" {WEBHOOK_SECRETS} has them.",
        metavar="FILE",
    ),
]
AllowNetwork = Annotated[
    list[str] | None,
    typer.Option(
        help="Webhooks only: a network that is not public, and may be reached nevertheless, such as"
        " 10.0.0.0/8; can be repeated.",
        metavar="NETWORK",
    ),
]
SendTimeout = Annotated[
    str | None,
    typer.Option(
        help="The longest time of a send; by default 10s, or four fifths of the lease if that is less.",
        metavar="TIME",
    ),
]
Name = Annotated[
    str | None, typer.Option(help="The name in status; host and process id by default.", metavar="TEXT")
]
Lease = Annotated[
    str, typer.Option(help="After this time without a sign of life, others take over.", metavar="TIME")
]
Batch = Annotated[int, typer.Option(help="The most messages in a batch.", metavar="NUMBER")]
Poll = Annotated[str, typer.Option(help="How often to look for messages without a wake-up.", metavar="TIME")]
MaxAttempts = Annotated[
    int, typer.Option(help="Sends without an answer after which a message is dead.", metavar="NUMBER")
]
Dead = Annotated[
    AfterDead,
    typer.Option(
        help="Whether messages behind a dead one of their key are sent: continue or hold.", metavar="WHAT"
    ),
]
KeepSent = Annotated[
    str | None, typer.Option(help="Keep a record of sent messages for this time, for audit.", metavar="TIME")
]
ListenUrl = Annotated[
    str | None,
    typer.Option(
        envvar="INBOX_OUTBOX_LISTEN_URL",
        show_envvar=True,
        metavar="URL",
        help="PostgreSQL's own address, if --url is a pooler's: wake-ups arrive there.",
    ),
]

PurgeEvery = Annotated[
    str | None,
    typer.Option(help="Purge the inbox, too, so often: one relay at a time does it.", metavar="TIME"),
]
GiveUpAfter = Annotated[
    str | None,
    typer.Option(help="A message that has failed for this time is dead; by default never.", metavar="TIME"),
]


def relay(
    url: Url,
    to: To,
    exchange: Exchange = "",
    secret_file: SecretFile = None,
    allow_network: AllowNetwork = None,
    send_timeout: SendTimeout = None,
    name: Name = None,
    lease: Lease = "30s",
    batch: Batch = 1_000,
    poll: Poll = "1s",
    max_attempts: MaxAttempts = 16,
    after_dead: Dead = AfterDead.CONTINUE,
    keep_sent: KeepSent = None,
    listen_url: ListenUrl = None,
    give_up_after: GiveUpAfter = None,
    listen: Listen = None,
    purge_every: PurgeEvery = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Send messages to a broker until SIGTERM or Ctrl-C; the current batch is then finished."""
    options = _options(
        name, schema, batch, lease, poll, max_attempts, after_dead, keep_sent, listen_url, give_up_after
    )
    timeout = _send_timeout(send_timeout, lease)
    webhook = WebhookOptions(secret_file, allow_network or ())
    with (
        engine_at(url, schema) as engine,
        publisher_at(to, exchange, timeout, webhook) as publisher,
        exporting(listen, [url], schema, system_of(to)) as exports,
    ):
        done = run(engine, publisher, options, exports, purge_every=length("purge-every", purge_every))
    if json:
        as_json(done)
    else:
        print(_described(done))
        if purge_every is not None:
            deleted, failed = counted(done.purged, "message"), counted(done.failed_purges, "failed purge")
            print(f"{deleted} of the inbox deleted, {failed}")


def drain(
    url: Url,
    to: To,
    timeout: Annotated[
        str | None, typer.Option(help="Stop after this time, such as 10m.", metavar="TIME")
    ] = None,
    exchange: Exchange = "",
    secret_file: SecretFile = None,
    allow_network: AllowNetwork = None,
    send_timeout: SendTimeout = None,
    name: Name = None,
    lease: Lease = "30s",
    batch: Batch = 1_000,
    poll: Poll = "1s",
    max_attempts: MaxAttempts = 16,
    after_dead: Dead = AfterDead.CONTINUE,
    keep_sent: KeepSent = None,
    listen_url: ListenUrl = None,
    give_up_after: GiveUpAfter = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Send messages to a broker until none can be sent.

    Exit code 4 if some are left, because they are held or paused, or because the time is over.
    """
    options = _options(
        name, schema, batch, lease, poll, max_attempts, after_dead, keep_sent, listen_url, give_up_after
    )
    limit = length("timeout", timeout)
    send_limit = _send_timeout(send_timeout, lease)
    webhook = WebhookOptions(secret_file, allow_network or ())
    with engine_at(url, schema) as engine, publisher_at(to, exchange, send_limit, webhook) as publisher:
        done = run(engine, publisher, options, Exports(), until_drained=True, timeout=limit)
        left, stray = _left(engine, schema)
    if json:
        as_json(asdict(done) | {"left": left, "stray": stray})
    else:
        print(f"{_described(done)}; {'an unknown number' if left is None else f'{left:,}'} left")
        if stray:
            print(f"{counted(stray, 'message')} in buckets that do not exist: a relay takes them in.")
    if left != 0 or stray != 0:
        raise typer.Exit(UNFINISHED)


def _left(engine: Engine, schema: str | None) -> tuple[int | None, int | None]:
    """The number of messages that wait for a relay, and of stray messages, waiting or delayed; None if the
    database is unavailable."""
    try:
        found = outbox.status(engine, schema=schema)
    except SQLAlchemyError:
        return None, None
    return found.pending + found.waiting + found.unknown + found.held, found.stray


COMMANDS: dict[str, Callable[..., None]] = {"relay": relay, "drain": drain}


def _send_timeout(given: str | None, lease: str) -> timedelta:
    """The longest time of a send: what was given, or what the lease allows, and at most 10 seconds."""
    most = SEND_SHARE * max(length("lease", lease), timedelta(seconds=1))  # a shorter lease is refused later
    timeout = length("send-timeout", given)
    if timeout is None:
        return min(most, timedelta(seconds=10))
    if timeout > most:
        raise UnsafeBroker(
            f"--send-timeout={given!r}: expected at most four fifths of the lease ({lease}), "
            "or a send could outlast it"
        )
    return timeout


def _options(
    name: str | None,
    schema: str | None,
    batch: int,
    lease: str,
    poll: str,
    max_attempts: int,
    after_dead: AfterDead,
    keep_sent: str | None,
    listen_url: str | None,
    give_up_after: str | None,
) -> RelayOptions:
    """The options for `Relay`."""
    if listen_url is not None:
        secrets.remember_in(listen_url)
    return {
        "name": name,
        "schema": schema,
        "batch": batch,
        "lease": length("lease", lease),
        "poll": length("poll", poll),
        "max_attempts": max_attempts,
        "after_dead": "hold" if after_dead is AfterDead.HOLD else "continue",
        "keep_sent": length("keep-sent", keep_sent),
        "listen_url": listen_url,
        "give_up_after": length("give-up-after", give_up_after),
    }


def _described(done: SendCounts) -> str:
    return (
        f"{counted(done.sent, 'message')} sent, {done.refused:,} refused, "
        f"{counted(done.not_taken, 'failed send')}, in {done.seconds:.1f} s"
    )
