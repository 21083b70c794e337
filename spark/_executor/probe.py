"""Leaves out rows whose keys are already in the inbox, on an executor."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.tables.inbox import tables
from spark._options.settings import WriterSettings

from .connect import committed, engine_of
from .keys import encode


def unseen_rows(settings: WriterSettings, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows whose keys are not in the inbox, and rows without a key: the writer decides about these."""
    for batch in batches:
        keys = encode([batch.column(name) for name in settings.key])
        found = _found(settings, keys.drop_null())
        yield batch.filter(pc.invert(pc.is_in(keys, pa.array(found, pa.string())))) if found else batch


def _found(settings: WriterSettings, keys: pa.StringArray) -> list[str]:
    database = loading(settings.url.get_backend_name())
    # `found` needs distinct keys in byte order, which is the order of the index.
    ordered = pc.unique(keys).sort()

    inbox = tables(settings.inbox_schema)
    return committed(
        engine_of(settings),
        database,
        settings,
        lambda connection: list(database.found(connection, inbox, settings.consumer, ordered).owners),
    )
