"""Options as text, named as in Spark's JDBC source."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from inbox_outbox_base.databases.results import Append, Upsert
from inbox_outbox_base.errors.inbox import InvalidOption

from .messages import Messages, PerPartition, PerRow

PREFIX = "spark.inbox."
"""The prefix of the session's defaults."""

_TEXTS = {
    "url": "url",
    "dbtable": "table",
    "consumer": "consumer",
    "inbox": "inbox",
    "user": "user",
    "password": "password",
    "txnappid": "run",
    "ledger": "ledger",
    "atomicity": "atomicity",
    "nullkeys": "null_keys",
    "mismatches": "mismatches",
    "badrows": "bad_rows",
    "isolationlevel": "isolation_level",
    "sessioninitstatement": "session_init_statement",
    "inboxschema": "inbox_schema",
    "keytime": "key_time",
}
_NUMBERS = {
    "txnversion": "batch",
    "batchsize": "batch_size",
    "numpartitions": "num_partitions",
    "maxconnections": "max_connections",
    "querytimeout": "query_timeout",
    "locktimeout": "lock_timeout",
    "memory": "memory",
    "retention": "retention",
}
_MESSAGES = ("outboxtopic", "outboxkey", "outboxpayload", "outboxper")
_RESULTS = ("results", "upsertkey", "version")
_SPARKS_OWN = ("path", "checkpointlocation")
_REFUSED = {
    "truncate": "existing rows are never deleted",
    "driver": "no JDBC driver is used; leave it out",
    "query": "this option is for reading",
    "before": "only with InboxWriter, which runs it on the driver",
    "after": "only with InboxWriter, which runs it on the driver",
}


_TOGETHER = (("password", "passwordcommand"), _RESULTS, _MESSAGES)
"""Options that make up one argument."""


def plain(name: str) -> str:
    """The option's name in lower case, without the prefix of the session's defaults."""
    return name.lower().removeprefix(PREFIX)


def from_strings(options: Mapping[str, str]) -> dict[str, Any]:
    """The writer's arguments for these options, in any case, with or without `PREFIX`.

    Raises:
        InvalidOption: an option is unknown, cannot be honoured, or is not a number.
    """
    given = {plain(name): (name, value) for name, value in options.items()}
    if {"password", "passwordcommand"} <= given.keys():
        raise InvalidOption("passwordCommand: not together with password")
    found: dict[str, Any] = {}
    for lower, (name, value) in given.items():
        if lower in _TEXTS:
            found[_TEXTS[lower]] = value
        elif lower in _NUMBERS:
            found[_NUMBERS[lower]] = number(name, value)
        elif lower in _PARSED:
            argument, parse = _PARSED[lower]
            found[argument] = parse(value)
        elif lower in _REFUSED:
            raise InvalidOption(f"{name}={value!r}: {_REFUSED[lower]}")
        elif lower not in (*_RESULTS, *_MESSAGES, *_SPARKS_OWN):
            raise InvalidOption(f"{name}: no such option")
    if any(name in given for name in _RESULTS):
        found["results"] = _results({name: given[name][1] for name in _RESULTS if name in given})
    if any(name in given for name in _MESSAGES):
        found["outbox"] = _messages({name: given[name][1] for name in _MESSAGES if name in given})
    return found


def with_defaults(options: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The options, and the defaults of the arguments that none of them is for."""
    said = {plain(name) for name in options}
    for together in _TOGETHER:
        if not said.isdisjoint(together):
            said.update(together)
    return {name: value for name, value in defaults.items() if plain(name) not in said} | dict(options)


def _messages(given: dict[str, str]) -> Messages:
    per = given.get("outboxper", "row").lower()
    if "outboxtopic" not in given:
        raise InvalidOption("outboxTopic: missing; the other options of the outbox need it")
    topic, key = given["outboxtopic"], given.get("outboxkey")
    if per == "row":
        payload = names(given["outboxpayload"]) if "outboxpayload" in given else None
        return PerRow(topic, key, payload[0] if payload is not None and len(payload) == 1 else payload)
    if per != "partition":
        raise InvalidOption(f"outboxPer={per!r}: expected row or partition")
    if "outboxpayload" in given:
        raise InvalidOption("outboxPayload: only with outboxPer='row'")
    return PerPartition(topic, key)


def _results(given: dict[str, str]) -> Append | Upsert:
    how = given.get("results", "append").lower()
    if how == "upsert" and {"upsertkey", "version"} <= given.keys():
        return Upsert(names(given["upsertkey"]), given["version"])
    if how == "upsert":
        raise InvalidOption("results='upsert': needs upsertKey and version")
    if how != "append":
        raise InvalidOption(f"results={how!r}: expected append or upsert; InboxWriter can do more")
    if len(given) > ("results" in given):
        raise InvalidOption("upsertKey, version: only with results='upsert'")
    return Append()


def _command(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:
        raise InvalidOption("passwordCommand: a quote is not closed") from None


def names(value: str) -> tuple[str, ...]:
    """Names that are separated by commas."""
    return tuple(name.strip() for name in value.split(","))


def number(name: str, value: str) -> int:
    """An option's whole number.

    Raises:
        InvalidOption: it is not a whole number.
    """
    try:
        return int(value)
    except ValueError:
        raise InvalidOption(f"{name}={value!r}: expected a whole number") from None


_PARSED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "key": ("key", names),
    "digest": ("digest", names),
    "passwordcommand": ("password", _command),
}
