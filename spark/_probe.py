"""Leaving out rows whose keys are in the inbox already, on an executor."""

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.exc import DBAPIError

from inbox._codes import is_passing
from inbox._transaction import pauses
from inbox.schema import tables

from . import _keys
from ._connect import engine_of, transaction
from ._databases import database_for
from ._settings import Settings

_TRIES = 20


def unseen_rows(settings: Settings, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows whose keys are not in the inbox; those without a key pass, for the writer to judge."""
    for batch in batches:
        keys = _keys.encode([batch.column(name) for name in settings.key])
        found = _found(settings, keys.drop_null())
        yield batch.filter(pc.invert(pc.is_in(keys, pa.array(found, pa.string())))) if found else batch


def _found(settings: Settings, keys: pa.StringArray) -> list[str]:
    database = database_for(settings.url.get_backend_name())
    ordered = pc.unique(keys).sort()
    for pause in pauses(_TRIES):
        try:
            with transaction(engine_of(settings), database, settings) as connection:
                inbox = tables(settings.inbox_schema)
                return list(database.found(connection, inbox, settings.consumer, ordered))
        except DBAPIError as error:
            if pause is None or not is_passing(error):
                raise
        time.sleep(pause)
    raise AssertionError("pauses() ends with None")
