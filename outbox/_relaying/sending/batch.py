"""The next messages to send, and their order."""

from dataclasses import dataclass, field

from inbox_outbox_base.databases.letter import Letter

SOLO_AFTER = 3
"""Sends without an answer after which a message is sent alone: if it kills relays, it affects no other
message. A message that was never sent alone is not given up: it may never have been sent."""


@dataclass(slots=True)
class Choice:
    """The next batches, and the messages to give up."""

    batches: list[list[Letter]] = field(default_factory=list)
    """Messages to send, in this order: each batch has one topic, and no two have the same."""
    exhausted: list[Letter] = field(default_factory=list)
    """Messages that become dead letters: they cannot be read, or used up their attempts without an answer."""
    has_more: bool = False
    """Whether to choose again at once: there are more messages."""

    @property
    def letters(self) -> list[Letter]:
        """All messages to send."""
        return [letter for batch in self.batches for letter in batch]
