"""Leaves out rows whose keys are already in the inbox, on an executor."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.errors.codes import is_passing
from inbox_outbox_base.tables.inbox import tables
from spark._options.settings import WriterSettings

from .connect import engine_of, transaction
from .keys import encode

_TRIES = 20


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

    def once() -> list[str]:
        with transaction(engine_of(settings), database, settings) as connection:
            inbox = tables(settings.inbox_schema)
            return list(database.found(connection, inbox, settings.consumer, ordered).owners)

    return retry(once, _TRIES, lambda error, _: isinstance(error, DBAPIError) and is_passing(error))
