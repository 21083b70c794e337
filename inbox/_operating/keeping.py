"""How far back a purge keeps each consumer's rows."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from inbox_outbox_base.checks.key_times import FORMS, KeyForm
from inbox_outbox_base.checks.retention import MARGIN, Retention
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.transactions.policy import DEAD_RETENTION, Policy, brief, times


class Keeping:
    """The horizons of a purge, from the caller's times, else the stored ones, else the defaults.

    Args:
        policies: the stored policies, by consumer.
        retention, dead_retention: the caller's times; None if not given.
        oldest: when the oldest message that the broker still holds was made.
        now: the database's clock.
    """

    def __init__(
        self,
        policies: Mapping[str, Policy],
        retention: Retention | None,
        dead_retention: float | None,
        oldest: datetime | None,
        now: datetime,
    ) -> None:
        self._policies = policies
        self._retention = retention
        self._dead_retention = dead_retention
        self._oldest = oldest
        self._now = now
        self._assumed: set[str] = set()
        (retention or Retention()).horizon(now, oldest)  # raises if `oldest` has no time zone

    @property
    def assumed(self) -> tuple[str, ...]:
        """The consumers for which only the default was available."""
        return tuple(sorted(self._assumed, key=str.encode))

    def learn(self, consumer: str, policy: Policy | None) -> bool:
        """Note a consumer's policy; return whether it is another one than before."""
        if policy is None or policy == self._policies.get(consumer):
            return False
        self._policies = {**self._policies, consumer: policy}
        return True

    def check(self) -> None:
        """Refuse times shorter than the stored ones.

        Raises:
            InvalidOption: a time is shorter.
        """
        asked = times(self._retention, self._dead_retention)
        used = "retention" if self._oldest is None else "margin"
        for consumer, policy in self._policies.items():
            for column, option in ((used, "retention"), ("dead_retention", "dead_retention")):
                given, stored = asked[column], policy.seconds[column]
                if given is not None and stored is not None and given < stored:
                    part = "" if column != "margin" else " (its producer and network)"
                    mine, its = (brief(timedelta(seconds=each)) for each in (given, stored))
                    raise InvalidOption(
                        f"{option}={mine}{part}: consumer {consumer!r} has asked for {its}. "
                        "Leave the option out, shorten what is stored (set_policy), or override it this once"
                    )

    def since(self, consumer: str) -> datetime:
        """The time before which a consumer's rows may be deleted."""
        policy, kept = self._policies.get(consumer), self._retention
        if kept is None:
            if policy is None:
                self._assumed.add(consumer)
            kept = Retention() if policy is None else policy.kept
        return kept.horizon(self._now, self._oldest)

    def form(self, consumer: str) -> KeyForm | None:
        """The form of its keys, if they name their time."""
        policy = self._policies.get(consumer)
        return None if policy is None else FORMS.get(policy.key_time)  # type: ignore[call-overload]

    def is_of_status_mode(self, consumer: str) -> bool:
        """Whether its messages are in the table of status-table mode."""
        policy = self._policies.get(consumer)
        return policy is not None and policy.mode == "status"

    def has_two_forms(self, consumer: str) -> bool:
        """Whether two processes have declared different forms, so that nobody knows a key's time."""
        policy = self._policies.get(consumer)
        return policy is not None and policy.key_time is not None and self.form(consumer) is None

    def is_new(self, consumer: str) -> bool:
        """Whether inboxes may still go by another policy: they look at it once a minute."""
        policy = self._policies.get(consumer)
        return policy is None or self._now - policy.since < 2 * MARGIN

    def keys_since(self, consumer: str, form: KeyForm) -> str:
        """The lowest key to keep, of a consumer whose keys have this form. Only the retention counts, and
        never a shorter one than the stored: by that, inboxes tell which keys are surely kept."""
        policy = self._policies[consumer]
        kept = max((policy.kept, self._retention or policy.kept), key=lambda each: each.duration)
        return form.since(kept.horizon(self._now))

    def time_left(self, form: KeyForm, key: str) -> timedelta:
        """How long it is until keys of this form reach this one; negative if they are past it."""
        return form.time(key) - self._now

    def dead_since(self, consumer: str) -> datetime:
        """The same for its dead and halted messages."""
        policy = self._policies.get(consumer)
        kept = DEAD_RETENTION if policy is None or policy.dead_retention is None else policy.dead_retention
        if self._dead_retention is not None:
            kept = timedelta(seconds=self._dead_retention)
        return self._now - kept - MARGIN
