"""The settings of Kafka's producer: their defaults, and those that would break the promise."""

from collections.abc import Mapping
from typing import Any

from inbox_outbox_base.errors.outbox import UnsafeBroker

from .parts import Limits

_IN_FLIGHT = "max.in.flight.requests.per.connection"
_TOPIC_SETTINGS = "default.topic.config"
_ALIASES = {
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight": _IN_FLIGHT,
    "message.send.max.retries": "retries",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
}


def filled_in(config: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """The caller's settings, each under one name, with defaults for missing ones; the caller's `linger.ms` is
    replaced."""
    given = {**config.get(_TOPIC_SETTINGS, {}), **config}
    given.pop(_TOPIC_SETTINGS, None)
    return {
        "acks": "all",
        "batch.num.messages": 1_000,
        "batch.size": 1_000_000,
        "enable.idempotence": True,
        # A broker's default limit, so that the largest payload fits with its headers.
        "message.max.bytes": 1_048_588,
        # No limit: otherwise a message could be given up, and the next one of its key written.
        "message.timeout.ms": 0,
        "reconnect.backoff.max.ms": 1_000,
        # Few enough that Kafka's reason arrives within the time limit; a lost connection uses one.
        "retries": 5,
        # Otherwise librdkafka derives it from linger.ms.
        "sticky.partitioning.linger.ms": 10,
        # A topic that does not exist is reported within the time limit, not after it.
        "topic.metadata.propagation.max.ms": max(1, int(timeout * 500)),
        **{_ALIASES.get(name, name): value for name, value in given.items()},
        # The maximum: messages leave only in a flush, so all messages of a part leave together.
        "linger.ms": 900_000,
    }


def keeps_order(settings: Mapping[str, Any]) -> bool:
    """Whether a request that is sent again has the same messages as before."""
    return _is_on(settings, "enable.idempotence")


def limits(settings: Mapping[str, Any]) -> Limits:
    """How much one request may hold, with settings that the client has accepted."""
    size = min(int(settings["batch.size"]), int(settings["message.max.bytes"]))
    return Limits(int(settings["batch.num.messages"]), size)


def check(settings: Mapping[str, Any]) -> None:
    """Make sure that no message is lost, or overtaken by a later one of its key.

    Args:
        settings: as `filled_in` returns them.

    Raises:
        UnsafeBroker: names the first setting that could cause this, its value, and why.
    """
    if _text(settings, "acks") not in ("all", "-1"):
        raise _unsafe(
            settings, "acks", "expected all, or a message is lost if the only broker that has it fails"
        )
    if not _is_on(settings, "enable.idempotence") and _text(settings, _IN_FLIGHT) != "1":
        raise _unsafe(
            settings,
            "enable.idempotence",
            f"expected True (or {_IN_FLIGHT}=1), or a resend could come after a later message of its key",
        )
    if _is_on(settings, "delivery.report.only.error"):
        raise _unsafe(
            settings,
            "delivery.report.only.error",
            "expected False, or written messages are not reported",
        )
    if _text(settings, "message.timeout.ms") != "0":
        raise _unsafe(
            settings,
            "message.timeout.ms",
            "expected none, or a message could be given up and the next of its key written: use timeout=",
        )
    if _text(settings, "partitioner") == "random":
        raise _unsafe(
            settings, "partitioner", "expected one that puts all messages of a key in one partition"
        )
    if "transactional.id" in settings:
        raise _unsafe(
            settings, "transactional.id", "expected none: the relay does not use Kafka's transactions"
        )


def _text(settings: Mapping[str, Any], name: str) -> str:
    return str(settings.get(name, "")).lower()


def _is_on(settings: Mapping[str, Any], name: str) -> bool:
    return _text(settings, name) in ("true", "1", "t")


def _unsafe(settings: Mapping[str, Any], name: str, why: str) -> UnsafeBroker:
    return UnsafeBroker(f"{name}={settings[name]!r}: {why}")
