"""A relay's loop around a KafkaPublisher, and the order in which messages were written."""

import random
from collections.abc import Sequence

from outbox import Accepted, Envelope, Outcome
from outbox.kafka import KafkaPublisher
from tests.support.answers import published

from .kafka_topics import Topics, envelope, id_of, wait_until


def written(topics: Topics, topic: str) -> dict[str, list[str]]:
    """For each key, the ids in the order in which each was first written."""
    found: dict[str, list[str]] = {}
    for record in topics.log(topic):
        ids = found.setdefault((record.key() or b"").decode(), [])
        if id_of(record) not in ids:
            ids.append(id_of(record))
    return found


def kinds(outcomes: Sequence[Outcome]) -> list[type[Outcome]]:
    return [type(each) for each in outcomes]


class Relaying:
    """Sends the messages of some keys as a relay does: again from the first message that was not accepted."""

    def __init__(self, topic: str, keys: int, seed: int = 0) -> None:
        self._topic = topic
        self._random = random.Random(seed)
        self._waiting: dict[str, list[Envelope]] = {f"key-{number}": [] for number in range(keys)}
        self.published: dict[str, list[str]] = {key: [] for key in self._waiting}
        self.accepted = 0

    def turn(self, sender: KafkaPublisher, most: int = 50) -> list[Outcome]:
        """Send one batch."""
        batch: list[Envelope] = []
        for key, waiting in self._waiting.items():
            for _ in range(self._random.randint(0, most) - len(waiting)):
                waiting.append(envelope(self._topic, f"{len(self.published[key])}", key))
                self.published[key].append(waiting[-1].id)
            batch += waiting
        self._random.shuffle(batch)
        turns = {key: iter(waiting) for key, waiting in self._waiting.items()}
        batch = [next(turns[each.key or ""]) for each in batch]
        outcomes = published(sender, batch)
        self._settle(batch, outcomes)
        return outcomes

    def _settle(self, batch: list[Envelope], outcomes: list[Outcome]) -> None:
        failed: set[str | None] = set()
        for message, outcome in zip(batch, outcomes, strict=True):
            if not isinstance(outcome, Accepted):
                failed.add(message.key)
                continue
            assert message.key not in failed, "accepted behind a message of its key that was not"
            assert self._waiting[message.key or ""].pop(0) is message
            self.accepted += 1

    def finish(self, sender: KafkaPublisher, topics: Topics) -> None:
        """Send until all are accepted; then check that each key is complete and in order."""
        wait_until(lambda: set(kinds(self.turn(sender, 0))) <= {Accepted})
        assert not any(self._waiting.values())
        assert written(topics, self._topic) == {key: ids for key, ids in self.published.items() if ids}
