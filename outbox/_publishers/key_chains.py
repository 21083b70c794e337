"""Messages of one key, one behind the other."""

from collections import deque
from collections.abc import Sequence

from inbox_outbox_base.words.outgoing import Envelope

Chain = deque[int]
"""Places in a batch; each message leaves when the previous one in its chain has been accepted."""


def chains_of(batch: Sequence[Envelope]) -> list[Chain]:
    """A chain of places for each key, and one for each message without a key."""
    chains: dict[object, Chain] = {}
    for place, envelope in enumerate(batch):
        chains.setdefault(place if envelope.key is None else envelope.key, deque()).append(place)
    return list(chains.values())
