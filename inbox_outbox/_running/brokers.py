"""Opens a publisher for a broker's URL."""

import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from sqlalchemy import URL

from inbox.errors import InvalidOption
from inbox_outbox_base.errors import secrets
from outbox import Publisher

EXPECTED = (
    "amqp://user@host/vhost, amqps://, kafka://host:9092?setting=value, nats://host:4222, tls://, "
    "redis://host:6379, rediss://, rocketmq://host:8081, sqs://sqs.eu-west-1.amazonaws.com, or "
    "https://host/path for webhooks"
)
WEBHOOK_SECRETS = "INBOX_OUTBOX_WEBHOOK_SECRETS"
"""The environment variable with the secrets of a webhook's endpoint, separated by blanks."""
_HTTP = ("http", "https")
_SECRET = ("password", "secret", ".pem", ".key")


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """What a URL does not say about a webhook's endpoint."""

    secret_file: Path | None = None
    """Its secrets, one on each line; None: those of the environment."""
    allowed: Sequence[str] = ()
    """Networks that are not public, and may be reached nevertheless."""


@contextmanager
def publisher_at(
    to: str, exchange: str, timeout: timedelta, webhook: WebhookOptions | None = None
) -> Iterator[Publisher]:
    """A publisher for the duration of a command.

    Args:
        to: the broker's URL; the query of a kafka:// URL holds settings of its client.
        exchange: RabbitMQ's exchange.
        timeout: the longest time for a send.
        webhook: options for webhooks only.

    Raises:
        InvalidOption: the URL is invalid; the message does not contain it, as it may hold a password.
        ImportError: the client is not installed.
    """
    scheme, _, rest = to.partition("://")
    webhook = webhook or WebhookOptions()
    if scheme not in _HTTP:
        for option, value in (("--secret-file", webhook.secret_file), ("--allow-network", webhook.allowed)):
            if value:
                raise InvalidOption(f"{option}: only webhooks have it")
    if exchange and scheme in (*_HTTP, *_OPENERS):
        raise InvalidOption(f"--exchange={exchange!r}: only RabbitMQ has exchanges")
    with naming(url="--to"):
        if scheme in ("amqp", "amqps") and rest:
            publisher = _rabbitmq(to, exchange, timeout)
        elif scheme in _HTTP and rest:
            publisher = _webhook(to, webhook, timeout)
        elif scheme in _OPENERS and rest:
            publisher = _OPENERS[scheme](to, timeout)
        else:
            raise InvalidOption(f"--to: expected {EXPECTED}")
        try:
            yield publisher
        finally:
            publisher.close()


@contextmanager
def naming(**options: str) -> Iterator[None]:
    """Errors about these arguments of ours name the options from which they come."""
    try:
        yield
    except InvalidOption as error:
        for name, option in options.items():
            error.args = (re.sub(rf"^{name}(?=[=:])", option, str(error)),)
        raise


def system_of(to: str) -> str:
    """The broker of a URL, as OpenTelemetry names it."""
    scheme = to.partition("://")[0]
    return _SYSTEMS.get(scheme, scheme)


def _rabbitmq(url: str, exchange: str, timeout: timedelta) -> Any:
    try:
        password = urlsplit(url).password
    except ValueError:
        raise InvalidOption(f"--to: expected {EXPECTED}") from None
    remember(unquote(password or ""))
    return _loaded("outbox.rabbitmq", "aiormq").RabbitPublisher(url, exchange=exchange, timeout=timeout)


def kafka_settings(rest: str) -> dict[str, str]:
    """The client's settings from the part of a kafka:// URL behind the slashes."""
    servers, _, query = rest.partition("?")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in settings.items():
        if any(part in name for part in _SECRET):
            remember(value)
    return {**settings, "bootstrap.servers": servers.rstrip("/")}


def _kafka(url: str, timeout: timedelta) -> Any:
    settings = kafka_settings(url.partition("://")[2])
    publisher: Any = _loaded("outbox.kafka", "confluent-kafka").KafkaPublisher
    from confluent_kafka import KafkaException

    class Checked(publisher):  # type: ignore[misc]
        """Reports settings that the client rejects as usage errors."""

        def check(self, lease: float) -> None:
            try:
                super().check(lease)
            except KafkaException as error:
                raise InvalidOption(f"--to: {error.args[0].str()}") from None

    return Checked(settings, timeout=timeout)


def _nats(url: str, timeout: timedelta) -> Any:
    remember_secret(url)
    return _loaded("outbox.nats", "nats-py").NatsPublisher(url, timeout=timeout)


def _redis(url: str, timeout: timedelta) -> Any:
    remember_secret(url)
    return _loaded("outbox.redis_streams", "redis").RedisStreamsPublisher(url, timeout=timeout)


def _rocketmq(url: str, timeout: timedelta) -> Any:
    remember_secret(url)
    return _loaded("outbox.rocketmq", "rocketmq-python-client").RocketMQPublisher(url, timeout=timeout)


def _sqs(url: str, timeout: timedelta) -> Any:
    remember_secret(url)
    return _loaded("outbox.sqs", "boto3").SQSPublisher(url, timeout=timeout)


_OPENERS: dict[str, Callable[[str, timedelta], Any]] = {
    "kafka": _kafka,
    "nats": _nats,
    "redis": _redis,
    "rediss": _redis,
    "rocketmq": _rocketmq,
    "rocketmqs": _rocketmq,
    "sqs": _sqs,
    "sqs+http": _sqs,
    "tls": _nats,
}
"""By the scheme of the URL."""
_SYSTEMS = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "http": "webhook",
    "https": "webhook",
    "rediss": "redis",
    "rocketmqs": "rocketmq",
    "sqs": "aws_sqs",
    "sqs+http": "aws_sqs",
    "tls": "nats",
}


def _loaded(module: str, client: str) -> Any:
    """A public module.

    Raises:
        ImportError: the client is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"cannot load {client}: {error}") from None


def _webhook(url: str, given: WebhookOptions, timeout: timedelta) -> Any:
    secrets_of_endpoint = _webhook_secrets(given.secret_file)
    for secret in secrets_of_endpoint:
        remember(secret)
    module = _loaded("outbox.webhook", "httpcore")
    with naming(secrets=f"--secret-file or {WEBHOOK_SECRETS}", allow="--allow-network"):
        endpoint = module.WebhookEndpoint(url, secrets_of_endpoint)
        return module.WebhookPublisher(endpoint, allow=given.allowed, timeout=timeout)


def _webhook_secrets(path: Path | None) -> list[str]:
    if path is None:
        return os.environ.get(WEBHOOK_SECRETS, "").split()
    try:
        return path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise InvalidOption(f"--secret-file={str(path)!r}: {why}") from None


def remember_secret(url: str) -> None:
    """Never print the secret of this address of NATS, Redis, RocketMQ or SQS; NATS has tokens, too."""
    scheme, _, rest = url.partition("://")
    user, colon, secret = rest.rpartition("@")[0].partition(":")
    remember(unquote(user if scheme in ("nats", "tls") and not colon else secret))


def remember(password: str) -> None:
    """Never print this password."""
    if password:
        secrets.remember(URL.create("broker", password=password))
