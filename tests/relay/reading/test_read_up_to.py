"""Where a relay's next scan of a bucket starts: never above a message that it does not know or that may still
appear."""

from datetime import UTC, datetime

from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.relaying import ScanResult, Writers
from outbox._relaying.reading.read_up_to import Frontier


def letter(bucket: int, sequence: int) -> Letter:
    """A message found by a scan."""
    named, now = (f"id-{sequence}", bucket, "t", f"k{sequence}", "x"), datetime.now(UTC)
    return Letter(*named, None, now, b"", 0, sequence, 0, 0, "pending", None, None, None)


def settled(highest: int) -> Frontier:
    """The frontier of a relay that knows that no message up to this sequence can still appear."""
    frontier = Frontier()
    frontier.record_writers(Writers(highest, frozenset({"1/1"}), "server", are_prepared=False))
    frontier.record_writers(Writers(highest + 5, frozenset({"2/7"}), "server", are_prepared=False))
    return frontier


def advance(frontier: Frontier, found: ScanResult, *, paused: bool = False) -> None:
    """Record a scan that started at the marks."""
    places = [(bucket, frontier.start(bucket)) for bucket in (1, 2)]
    frontier.advance(places, found, paused=paused)


def test_a_bucket_that_was_read_to_its_end() -> None:
    """When a bucket was read to its end, the next scan starts at the settled sequence, and no further."""
    frontier = settled(100)
    advance(frontier, ScanResult([letter(1, 40), letter(1, 300)], {1}))
    assert (frontier.start(1), frontier.start(2)) == (100, 0)


def test_up_to_the_last_message_that_was_read() -> None:
    """When a bucket was not read to its end, the next scan starts behind the last message that was read."""
    frontier = settled(100)
    advance(frontier, ScanResult([letter(1, 40), letter(1, 41), letter(2, 300)], set()))
    assert (frontier.start(1), frontier.start(2)) == (41, 100)


def test_a_scan_from_further_on() -> None:
    """A scan that started above the mark does not move it: the messages in between have not been read."""
    frontier = settled(100)
    frontier.advance([(1, 50)], ScanResult([letter(1, 80)], {1}), paused=False)
    assert frontier.start(1) == 0


def test_back_to_the_messages_that_it_knew() -> None:
    """When the known messages are forgotten, the next scan reads them again."""
    frontier = settled(100)
    advance(frontier, ScanResult([letter(1, 30), letter(1, 40)], {1, 2}))
    frontier.go_back({1: 30})
    assert (frontier.start(1), frontier.start(2)) == (29, 100)


def test_while_topics_are_paused() -> None:
    """While a topic is paused, scans start behind its messages; when the set of paused topics changes, they
    start below them again."""
    frontier = settled(100)
    advance(frontier, ScanResult([letter(1, 20)], set()))
    advance(frontier, ScanResult([letter(1, 80)], {1}), paused=True)
    assert frontier.start(1) == 100
    frontier.go_back({1: 80})
    assert frontier.start(1) == 20


def test_while_a_writer_is_at_work() -> None:
    """Nothing is settled while a transaction that was writing at the mark is still running, or a prepared
    transaction exists."""
    for second in (
        Writers(200, frozenset({"1/1", "3/3"}), "server", are_prepared=False),
        Writers(200, frozenset({"-1/99"}), "server", are_prepared=True),
    ):
        frontier = Frontier()
        frontier.record_writers(Writers(100, frozenset({"1/1"}), "server", are_prepared=False))
        frontier.record_writers(second)
        advance(frontier, ScanResult([], {1}))
        assert frontier.start(1) == 0


def test_buckets_that_change_hands() -> None:
    """When a bucket is given up, everything known about it is forgotten."""
    frontier = settled(100)
    advance(frontier, ScanResult([], {1, 2}))
    frontier.keep([2])
    assert (frontier.start(1), frontier.start(2)) == (0, 100)
    frontier.go_back({})
    assert frontier.start(1) == 0


def test_sequences_that_start_over() -> None:
    """After a restore or a failover, sequences may be drawn again, so all marks are forgotten. Behind a proxy
    a connection outlives its server, and another server answers."""
    for lower in (
        Writers(10, frozenset(), "server", are_prepared=False),
        Writers(4_000, frozenset(), "another", are_prepared=False),
    ):
        frontier = settled(3_000)
        advance(frontier, ScanResult([], {1}))
        assert frontier.record_writers(lower)
        assert frontier.start(1) == 0
        advance(frontier, ScanResult([], {1}))
        assert frontier.start(1) == 0
