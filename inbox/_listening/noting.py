"""What an inbox notes when it refuses a message.

While a listener handles a message, the notes are kept with it: once the handler has ended, the listener
decides, adds where the message came from, and has them recorded. Elsewhere they are recorded immediately, if
the inbox was made with `record_refusals="always"`.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from sqlalchemy import Connection, Engine, Table

from inbox._refusing.recording import record
from inbox._refusing.refusal import RefusalNote, written
from inbox_outbox_base.databases.taking import Attempt
from inbox_outbox_base.monitoring.events import stored
from inbox_outbox_base.words.incoming import Delivery, Verdict
from inbox_outbox_base.words.outgoing import Envelope

from .counting import Recordings, current
from .outcome import Outcome

Records = Literal["listening", "always", "never"]
"""Which refusals an inbox records: those about which a listener decides, all, or none."""
RECORDS = ("listening", "always", "never")


def refuse(records: Records, note: RefusalNote) -> None:
    """An inbox refuses a message."""
    if records == "never":
        return
    recordings = current()
    if recordings is None:
        if records == "always":
            record(note)
    elif not recordings.refuse(note):
        record(note)  # by a thread or task that the handler has left behind


def fail(records: Records, note: RefusalNote) -> None:
    """A handler's error has left an inbox that keeps no record of the message: should the listener give up
    the message, nothing else would say so."""
    if records != "never" and (recordings := current()) is not None:
        recordings.fail(note)


def fail_unkeyed(
    records: Records, error: BaseException, consumer: str, table: Table, engine: Callable[[], Any]
) -> None:
    """The same, if perhaps the message's key cannot be had: it has none, or its function fails."""
    if records != "never" and (recordings := current()) is not None:
        with suppress(Exception):  # the application's own function may fail
            recordings.fail_unkeyed(
                error, RefusalNote(engine(), table, consumer, "", Verdict.DEAD, None, None)
            )


def settle(recordings: Recordings, message: object, outcome: Outcome, *, is_given_up: bool) -> None:
    """The listener decides about the message; record what was refused."""
    error = outcome.error if is_given_up and outcome.verdict in (Verdict.DEAD, Verdict.NEW) else None
    if error is not None and (failed := recordings.failed_at(error)) is not None:
        recordings.refuse(replace(failed, error=stored(error)))
    for each in recordings.take_refused():
        record(_placed(each, message))


def note_of(
    bind: Connection | Engine, attempt: Attempt, verdict: Verdict, stored_digest: bytes | None = None
) -> RefusalNote:
    """A note about the message of this attempt, of which the key was taken with the stored digest."""
    engine = bind if isinstance(bind, Engine) else _engine_of(bind)
    given = attempt.consumer, attempt.key, verdict, attempt.digest, stored_digest
    return RefusalNote(engine, attempt.tables.refused, *given)


def _engine_of(connection: Connection) -> Engine:
    """Where to record what was refused on a connection: its engine, with the connection's own map of
    schemas."""
    translated = connection.get_execution_options().get("schema_translate_map")
    engine = connection.engine
    if translated == engine.get_execution_options().get("schema_translate_map"):
        return engine
    return engine.execution_options(schema_translate_map=translated)


def _placed(note: RefusalNote, message: object) -> RefusalNote:
    """With where the message came from, as far as the listener knows."""
    if not isinstance(message, Delivery | Envelope):
        return note
    place = message.place if isinstance(message, Delivery) else "outbox"
    return replace(
        note, message_id=written(message.id), topic=written(message.topic), place=place and written(place)
    )
