"""Settings of a stream with which messages that were accepted can be lost."""

from typing import Any

_SHORTEST_AGE = 24 * 60 * 60
"""Seconds."""
_LIMITS = ("max_msgs", "max_bytes", "max_msgs_per_subject")


def reason_unsafe(config: Any) -> str | None:
    """The setting, its value and what it does; None if there is none.

    Args:
        config: nats-py's `StreamConfig`.
    """
    if config.no_ack:
        return "no_ack=true: it confirms no message"
    if str(config.storage).lower().endswith("memory"):
        return "storage=memory: a restart of the servers loses its messages"
    if config.max_age and config.max_age < _SHORTEST_AGE:
        return (
            f"max_age={config.max_age:g} s, after which it deletes a message that nobody has taken; expected "
            f"{_SHORTEST_AGE} or more"
        )
    limits = [f"{name}={value}" for name in _LIMITS if (value := getattr(config, name) or -1) > 0]
    if limits and str(config.discard).lower().endswith("old"):
        return f"discard=old with {limits[0]}: it deletes what nobody has taken; expected discard=new"
    return None
