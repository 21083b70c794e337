"""From where a relay reads a bucket: never from above a message that is there, or that may yet appear."""

from datetime import UTC, datetime

from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.relaying import ScanResult, Writers
from outbox import Envelope
from outbox._relaying.waiting import Waiting


def letter(bucket: int, sequence: int) -> Letter:
    """A message that a scan has found."""
    envelope = Envelope(f"id-{sequence}", "t", f"k{sequence}", b"", "text/plain", {}, 1, datetime.now(UTC))
    return Letter(envelope, 0, bucket, sequence, 0, "pending", None)


def settled(highest: int) -> Waiting:
    """A relay that knows that nothing up to this sequence can appear any more."""
    waiting = Waiting()
    waiting.record_writers(Writers(highest, frozenset({"1/1"}), "server", are_prepared=False))
    waiting.record_writers(Writers(highest + 5, frozenset({"2/7"}), "server", are_prepared=False))
    return waiting


def test_a_bucket_that_was_read_to_its_end() -> None:
    """It is empty up to what is settled, and no further."""
    waiting = settled(100)
    waiting.raise_marks(ScanResult([], {1}), paused=False)
    assert (waiting.low(1), waiting.low(2)) == (100, 0)


def test_up_to_the_first_message() -> None:
    """What lies below the first message of a bucket need not be read again."""
    waiting = settled(100)
    waiting.raise_marks(ScanResult([letter(1, 40), letter(1, 41), letter(2, 300)], {1}), paused=False)
    assert (waiting.low(1), waiting.low(2)) == (39, 100)


def test_a_message_that_waits_stays_in_reach() -> None:
    """A scan does not bring messages that wait; the mark stays below them."""
    waiting = settled(100)
    waiting.block("k", 1, 30, 60.0)
    waiting.raise_marks(ScanResult([letter(1, 40)], {1}), paused=False)
    assert waiting.low(1) == 29


def test_a_bucket_that_was_not_read() -> None:
    """A key that waits says nothing of its bucket: below it there may be messages that no scan has
    brought."""
    waiting = settled(100)
    waiting.block("k", 1, 30, 60.0)
    waiting.raise_marks(ScanResult([letter(2, 10)], set()), paused=False)
    assert (waiting.low(1), waiting.low(2)) == (0, 9)


def test_while_topics_are_paused() -> None:
    """A scan that leaves topics out says nothing."""
    waiting = settled(100)
    waiting.raise_marks(ScanResult([], {1}), paused=True)
    assert waiting.low(1) == 0


def test_while_a_writer_is_at_work() -> None:
    """Nothing is settled as long as one of those writes who were writing at the mark, or one is prepared."""
    for second in (
        Writers(200, frozenset({"1/1", "3/3"}), "server", are_prepared=False),
        Writers(200, frozenset({"-1/99"}), "server", are_prepared=True),
    ):
        waiting = Waiting()
        waiting.record_writers(Writers(100, frozenset({"1/1"}), "server", are_prepared=False))
        waiting.record_writers(second)
        waiting.raise_marks(ScanResult([], {1}), paused=False)
        assert waiting.low(1) == 0


def test_buckets_that_change_hands() -> None:
    """What was learned of a bucket is forgotten when it is given up."""
    waiting = settled(100)
    waiting.block("k", 1, 30, 60.0)
    waiting.raise_marks(ScanResult([], {1, 2}), paused=False)
    waiting.keep([2])
    assert (waiting.low(1), waiting.low(2), waiting.blocked()) == (0, 100, {})


def test_a_message_below_one_that_waits() -> None:
    """Below the message with which a key began to wait, another one of that key may be committed later: no
    scan looks for it while the key waits, so the mark stays below it."""
    waiting = Waiting()
    waiting.record_writers(Writers(40, frozenset({"1/1"}), "server", are_prepared=False))
    waiting.block("k", 1, 30, 60.0)
    waiting.record_writers(Writers(50, frozenset(), "server", are_prepared=False))
    waiting.raise_marks(ScanResult([], {1}), paused=False)
    assert waiting.low(1) == 0


def test_sequences_that_begin_anew() -> None:
    """After a restore or a failover numbers may be drawn again: what was learned is forgotten."""
    waiting = settled(3_000)
    waiting.raise_marks(ScanResult([], {1}), paused=False)
    waiting.record_writers(Writers(10, frozenset(), "server", are_prepared=False))
    assert waiting.low(1) == 0


def test_where_scans_start() -> None:
    """Behind messages that wait, however many; below them as soon as one of their keys goes on."""
    waiting = settled(100)
    waiting.block("k", 1, 30, 60.0)
    waiting.raise_marks(ScanResult([letter(1, 80)], set()), paused=False)
    assert (waiting.start(1), waiting.low(1)) == (79, 29)
    waiting.let_go("k")
    assert waiting.start(1) == waiting.low(1) == 29


def test_where_scans_start_while_topics_are_paused() -> None:
    """Behind messages of paused topics; what that says ends when other topics are paused."""
    waiting = settled(100)
    waiting.raise_marks(ScanResult([letter(1, 80)], set()), paused=True)
    assert (waiting.start(1), waiting.low(1)) == (79, 0)
    waiting.forget_waits()
    assert waiting.start(1) == 0


def test_another_server() -> None:
    """Behind a proxy a connection outlives its server: another one may draw numbers again, so what was
    learned is forgotten, waits included."""
    waiting = settled(3_000)
    waiting.block("k", 1, 30, 60.0)
    waiting.raise_marks(ScanResult([], {1}), paused=False)
    waiting.record_writers(Writers(4_000, frozenset(), "another", are_prepared=False))
    assert (waiting.low(1), waiting.start(1), waiting.blocked()) == (0, 0, {})
