"""Keys that name their time, and what makes a consumer forget them."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine

from inbox import purge, timed_key
from inbox_outbox.testing import age
from inbox_outbox_base.checks.key_times import FORMS, KeyTime


def key_of(form: KeyTime, when: datetime, name: str = "a") -> str:
    """A key of this form and time; others have other names."""
    number = int.from_bytes(name.encode())
    if form == "uuid7":
        return f"{FORMS[form].since(when)}-7000-8000-{number:012x}"
    return FORMS[form].since(when) + f"{number:016d}" if form == "ulid" else timed_key(when, name)


def ago(*, form: KeyTime = "uuid7", name: str = "a", **time: float) -> str:
    """The same, of a time that has passed."""
    return key_of(form, datetime.now(UTC) - timedelta(**time), name)


def forget(engine: Engine) -> None:
    """Purge as a service does: what one purge does not let in any more, a later one deletes."""
    for _ in range(2):
        with engine.begin() as connection:
            age(connection, by=300)
        purge(engine)
