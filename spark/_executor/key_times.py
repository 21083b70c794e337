"""Keys that name their time: which of a partition's keys its consumer still takes."""

from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection

from inbox_outbox_base.checks.key_times import FORMS, KeyForm
from inbox_outbox_base.checks.retention import SKEW
from inbox_outbox_base.databases.key_range import KeyRange
from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.databases.taking import KeyBatch
from inbox_outbox_base.errors.spark import InvalidRow
from inbox_outbox_base.tables.inbox import Tables
from inbox_outbox_base.transactions.declaring import Declaration
from spark._options.settings import WriterSettings

_DAY = 10
"""How many characters of a timed key are its day."""


def policy_of(settings: WriterSettings, tables: Tables) -> Declaration:
    """The policy that a job asks for."""
    return Declaration(
        tables, settings.consumer, "exactly-once", settings.retention, key_time=settings.key_time
    )


def check_form(settings: WriterSettings, keys: pa.StringArray) -> None:
    """Refuse keys that do not name their time, if they must.

    Raises:
        InvalidRow: there are some.
    """
    if settings.key_time is None or not len(keys):
        return
    form = FORMS[settings.key_time]
    are_right = pc.match_substring_regex(keys, f"(?s)^({form.pattern})$")
    wrong = len(keys) - (pc.sum(are_right).as_py() or 0)
    if settings.key_time == "timed" and not wrong:
        days = pc.unique(pc.utf8_slice_codeunits(keys, 0, _DAY)).to_pylist()
        wrong = sum(not form.is_key(f"{day}T00:00:00.000000Z[0]") for day in days)
    if wrong:
        raise InvalidRow(
            f"key={settings.key!r}: {wrong} keys are none that key_time={settings.key_time!r} "
            f"expects: {form.expected}"
        )


class KeyTimes:
    """The range of keys that a consumer takes, in the transaction of a partition."""

    def __init__(
        self, connection: Connection, settings: WriterSettings, tables: Tables, form: KeyForm
    ) -> None:
        self._connection = connection
        self._form = form
        self._database = taking(connection.dialect.name)
        self._batch = KeyBatch(tables, settings.consumer, b"", [])
        self._policy = policy_of(settings, tables)
        if not self._policy.is_seen(connection):
            self._policy.agree(connection, is_new=False)

    def check(self, last: str) -> None:
        """Refuse keys whose time has not come; `last` is the last one.

        Raises:
            InvalidRow: it is more than a day ahead of the database's clock.
        """
        since = self._form.since
        if last >= since(datetime.now(UTC)) and last >= since(self._database.now(self._connection) + SKEW):
            raise InvalidRow("the time of a key is more than a day ahead of the database's clock")

    def range_from(self, lowest: str) -> KeyRange:
        """The keys that the consumer takes; `lowest` is the lowest in question. To be called after a look for
        keys that were taken before: one that was deleted by then is below this range."""
        sure_from = partial(self._policy.surely_kept_from, self._connection, self._form)
        return self._database.key_range(self._connection, self._batch, lowest, sure_from)
