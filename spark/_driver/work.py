"""The work of a batch: all that decides what happens to its rows."""

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from inbox_outbox_base.databases.results import Results, Statements
from spark._options.settings import WriterSettings


def work_of(settings: WriterSettings, places: Sequence[str | None], schema: pa.Schema) -> str:
    """A digest of the targets, the results, the options that decide what is written, and the rows' columns.

    `places` are the full names of the targets; None for a target without a table. A function is known by its
    module and name: what it does cannot be compared.
    """
    targets = [(place, _named(each.results)) for place, each in zip(places, settings.targets, strict=True)]
    options = (
        settings.key,
        settings.inbox,
        None if settings.outbox is None else _named(settings.outbox),
        settings.null_keys,
        settings.digest,
        settings.mismatches,
        settings.session_init_statement,
    )
    columns = [(field.name, str(field.type)) for field in schema]
    text = json.dumps([targets, options, columns])
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _named(how: Results | Any) -> tuple[str, Any]:
    kind = type(how).__qualname__
    if isinstance(how, Statements):
        return kind, how.texts
    if is_dataclass(how) and not isinstance(how, type):
        # The place stands for the table's name, which may be written in several ways.
        return kind, {name: value for name, value in asdict(how).items() if name != "table"}
    function = getattr(how, "func", how)  # of a partial
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return kind, f"{getattr(function, '__module__', '')}.{name}"
