"""How long keys are kept."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from inbox import Inbox, Retention
from inbox.errors import InvalidOption

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MARGIN = timedelta(minutes=1)


def test_seven_days_unless_told_otherwise() -> None:
    """The default retention is 7 days, also for an inbox created without one."""
    assert Retention().duration == timedelta(days=7)
    assert Inbox("billing").retention == Retention()


def test_the_times_add_up() -> None:
    """A key is kept for the sum of the broker's, the producer's and the network's time, plus the margin."""
    kept = Retention(broker=timedelta(days=3), producer=3600, network=60.5)
    assert kept.duration == timedelta(days=3, hours=1, seconds=60.5)
    assert kept.horizon(NOW) == NOW - kept.duration - MARGIN


def test_the_oldest_unconsumed_message_shortens_it() -> None:
    """If the broker reports its oldest unconsumed message, rows older than that minus the margins may be
    purged."""
    kept = Retention(broker=timedelta(days=15), producer=timedelta(hours=1), network=60)
    oldest = NOW - timedelta(minutes=5)
    assert kept.horizon(NOW, oldest) == oldest - timedelta(hours=1, seconds=60) - MARGIN


def test_the_oldest_message_can_be_as_old_as_can_be() -> None:
    """Then nothing is old enough to be purged, and that is no error. A time that UTC does not have is
    refused."""
    first = datetime.min.replace(tzinfo=UTC)
    assert Retention().horizon(NOW, first) == first
    with pytest.raises(InvalidOption, match=r"oldest_unconsumed=.*in UTC"):
        Retention().horizon(NOW, datetime.min.replace(tzinfo=timezone(timedelta(hours=1))))


def test_an_oldest_message_from_the_future_counts_as_now() -> None:
    """An oldest message from the future counts as now, so a broker's clock that is ahead does not shorten the
    margins."""
    kept = Retention(producer=60)
    assert kept.horizon(NOW, NOW + timedelta(hours=1)) == NOW - timedelta(seconds=60) - MARGIN


def test_seconds_and_timedeltas_mean_the_same() -> None:
    """An inbox takes its retention as seconds, as a timedelta or as a Retention."""
    durations = {
        Inbox("a", retention=each).retention.duration for each in (90, timedelta(seconds=90), Retention(90))
    }
    assert durations == {timedelta(seconds=90)}


def test_a_horizon_needs_time_zones() -> None:
    """A datetime without a time zone is rejected, because it could mean any hour."""
    with pytest.raises(InvalidOption, match="oldest_unconsumed"):
        Retention().horizon(NOW, datetime(2026, 3, 1))  # noqa: DTZ001 - naive on purpose


def test_a_worker_whose_clock_is_wrong_does_not_decide() -> None:
    """A worker trusts its own clock only for messages that are at least a day younger than the retention."""
    now = datetime.now(UTC)
    assert Retention().surely_covers(now - timedelta(days=5, hours=23))
    assert not Retention().surely_covers(now - timedelta(days=6, hours=1))
    assert not Retention(timedelta(hours=20)).surely_covers(now)
