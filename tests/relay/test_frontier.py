"""From where a relay reads a bucket: never from above a message that it does not know, or that may yet
appear."""

from datetime import UTC, datetime

from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.relaying import ScanResult, Writers
from outbox._relaying.frontier import Frontier


def letter(bucket: int, sequence: int) -> Letter:
    """A message that a scan has found."""
    named, now = (f"id-{sequence}", bucket, "t", f"k{sequence}", "x"), datetime.now(UTC)
    return Letter(*named, None, now, b"", 0, sequence, 0, 0, "pending", None, None, None)


def settled(highest: int) -> Frontier:
    """A relay that knows that nothing up to this sequence can appear any more."""
    frontier = Frontier()
    frontier.record_writers(Writers(highest, frozenset({"1/1"}), "server", are_prepared=False))
    frontier.record_writers(Writers(highest + 5, frozenset({"2/7"}), "server", are_prepared=False))
    return frontier


def advance(frontier: Frontier, found: ScanResult, *, paused: bool = False) -> None:
    """A scan from the marks on."""
    places = [(bucket, frontier.start(bucket)) for bucket in (1, 2)]
    frontier.advance(places, found, paused=paused)


def test_a_bucket_that_was_read_to_its_end() -> None:
    """Nothing is left to read up to what is settled, and no further."""
    frontier = settled(100)
    advance(frontier, ScanResult([letter(1, 40), letter(1, 300)], {1}))
    assert (frontier.start(1), frontier.start(2)) == (100, 0)


def test_up_to_the_last_message_that_was_read() -> None:
    """What lies behind it in the bucket has not been read."""
    frontier = settled(100)
    advance(frontier, ScanResult([letter(1, 40), letter(1, 41), letter(2, 300)], set()))
    assert (frontier.start(1), frontier.start(2)) == (41, 100)


def test_a_scan_from_further_on() -> None:
    """A scan that begins above the mark says nothing of what lies between."""
    frontier = settled(100)
    frontier.advance([(1, 50)], ScanResult([letter(1, 80)], {1}), paused=False)
    assert frontier.start(1) == 0


def test_back_to_the_messages_that_it_knew() -> None:
    """When the known messages are forgotten, they are read again."""
    frontier = settled(100)
    advance(frontier, ScanResult([letter(1, 30), letter(1, 40)], {1, 2}))
    frontier.go_back({1: 30})
    assert (frontier.start(1), frontier.start(2)) == (29, 100)


def test_while_topics_are_paused() -> None:
    """Scans start behind messages of paused topics; what that says ends when other topics are paused."""
    frontier = settled(100)
    advance(frontier, ScanResult([letter(1, 20)], set()))
    advance(frontier, ScanResult([letter(1, 80)], {1}), paused=True)
    assert frontier.start(1) == 100
    frontier.go_back({1: 80})
    assert frontier.start(1) == 20


def test_while_a_writer_is_at_work() -> None:
    """Nothing is settled as long as one of those writes who were writing at the mark, or one is prepared."""
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
    """What was learned of a bucket is forgotten when it is given up."""
    frontier = settled(100)
    advance(frontier, ScanResult([], {1, 2}))
    frontier.keep([2])
    assert (frontier.start(1), frontier.start(2)) == (0, 100)
    frontier.go_back({})
    assert frontier.start(1) == 0


def test_sequences_that_start_over() -> None:
    """After a restore or a failover numbers may be drawn again: what was learned is forgotten. Behind a proxy
    a connection outlives its server, and another one answers."""
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
