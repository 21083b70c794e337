"""The topics of the outbox as rows of a table."""

from datetime import timedelta

from outbox import OutboxOverview

from .units import duration

_STATES = ("pending", "waiting", "unknown", "held", "dead")
STATES_SAID = (
    "pending: not sent yet; waiting: sent and not taken; unknown: sent without an answer. "
    "Messages of the last two are sent again."
)
"""Below the counts, if there are such messages: the words alone do not tell these states apart."""


def rows_of(found: OutboxOverview) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The headings, and a row for each topic."""
    rows = []
    for each in found.topics:
        if each.rejected is not None:
            retry = f"rejected, again in {duration(each.rejected.until - found.database.now)}"
        else:
            retry = "-" if each.retry_at is None else f"in {duration(each.retry_at - found.database.now)}"
        rows.append(
            (
                each.topic,
                *(str(getattr(each, state)) for state in _STATES),
                "-" if each.oldest_age is None else duration(timedelta(seconds=each.oldest_age)),
                "paused" if each.is_paused else retry,
                "-" if each.error is None else f"{each.error} ({each.error_id})",
            )
        )
    return ("topic", *_STATES, "oldest", "next try", "error"), rows
