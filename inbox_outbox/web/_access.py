"""Who looks at a page, and what they may decide."""

from collections.abc import Collection
from dataclasses import dataclass

from inbox.errors import InvalidOption
from inbox_outbox_base.checks import deciding

ACTIONS = ("retry", "discard", "drop", "release", "resolve", "dismiss", "pause", "resume", "show")
"""What can be allowed to a user. "show" is to look at payloads."""
DELIVER = "deliver"
"""To retry, and to publish again: for those who may retry."""


def nobody(user: str) -> Collection[str]:
    """Allow a user to look, and nothing else."""
    return ()


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody with a page open."""

    name: str
    actions: frozenset[str]

    @classmethod
    def of(cls, name: str, actions: Collection[str]) -> "Visitor":
        """A user with these actions.

        Raises:
            InvalidOption: the name cannot be stored with a decision, or there is no such action.
        """
        unknown = sorted({*actions} - {*ACTIONS})
        if unknown:
            raise InvalidOption(
                f"allow: {unknown[0]!r} is not an action; expected some of {', '.join(ACTIONS)}"
            )
        return cls(deciding.operator(name), frozenset(actions))

    def may(self, action: str) -> bool:
        """Whether this action is allowed."""
        return action in self.actions
