"""Which messages a listener runs, in which order, and which run at the same time."""

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inbox import Action, AsyncListener, Decisions, Listener, Outcome, Verdict
from tests.support.listeners import Decide, each_listener
from tests.support.together import together

NEW = Outcome(Verdict.NEW)
OUTCOMES = {
    NEW: Action.ACK,
    Outcome(Verdict.DUPLICATE): Action.ACK,
    Outcome(Verdict.IN_FLIGHT, None, 2.0): Action.RETRY,
    Outcome(Verdict.MISMATCH): Action.DEAD_LETTER,
    Outcome(Verdict.DEAD): Action.DEAD_LETTER,
    Outcome(Verdict.NEW, None, 5.0, ValueError("a")): Action.RETRY,
}
Message = tuple[int, str | None, Outcome]
"""Its place in the batch, its key and what the handler says about it."""

batches = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from(list(OUTCOMES))))


class Watch:
    """A handler that records what runs when."""

    def __init__(self, work: Callable[[Message], object] = lambda _: None) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._running: Counter[str | None] = Counter()
        self.begun: list[Message] = []
        self.most = 0
        """How many ran at once, at most."""
        self.overlaps: list[Message] = []
        """What began while another message of its key was running."""

    def __call__(self, message: Message) -> Outcome:
        key = message[1]
        with self._lock:
            if key is not None and self._running[key]:
                self.overlaps.append(message)
            self._running[key] += 1
            self.most = max(self.most, self._running.total())
            self.begun.append(message)
        try:
            self._work(message)
            return message[2]
        finally:
            with self._lock:
                self._running[key] -= 1

    async def asynchronously(self, message: Message) -> Outcome:
        """The same as a coroutine; other tasks run in between."""
        key = message[1]
        if key is not None and self._running[key]:
            self.overlaps.append(message)
        self._running[key] += 1
        self.most = max(self.most, self._running.total())
        self.begun.append(message)
        await asyncio.sleep(0)
        self._running[key] -= 1
        return message[2]

    def is_ordered(self) -> bool:
        """Whether the messages of each key started in the batch's order, one after the other."""
        order = defaultdict(list)
        for number, key, _ in self.begun:
            order[key].append(number)
        order.pop(None, None)
        return self.overlaps == [] and all(numbers == sorted(numbers) for numbers in order.values())


def key_of(message: Message) -> str | None:
    return message[1]


def numbered(batch: Sequence[tuple[str | None, Outcome]]) -> list[Message]:
    return [(number, key, outcome) for number, (key, outcome) in enumerate(batch)]


def of_keys(keys: Sequence[str | None]) -> list[Message]:
    return numbered([(key, NEW) for key in keys])


@each_listener
@hypothesis_settings(deadline=None, max_examples=60)
@given(batch=batches, concurrency=st.integers(1, 5), in_order=st.booleans())
@example(batch=[], concurrency=1, in_order=False)
def test_whatever_happens(
    decide: Decide, batch: list[tuple[str | None, Outcome]], concurrency: int, in_order: bool
) -> None:
    """Every message gets one decision: the one for its outcome if it ran, and RETRY if it did not. Each
    message runs at most once, and messages of a key run in order. `acknowledged` counts the messages before
    the first that is not acknowledged. With order="in_order", all of these have run, and that one, too."""
    messages, watch = numbered(batch), Watch()
    order = "in_order" if in_order else "each"
    decisions = decide(messages, watch, order=order, concurrency=concurrency, key=key_of)

    assert len(decisions) == len(messages)
    assert max(Counter(watch.begun).values(), default=1) == 1
    begun = {number for number, *_ in watch.begun}
    for (number, _, outcome), decision in zip(messages, decisions, strict=True):
        if number in begun:
            assert decision.outcome is outcome
            assert decision.action is OUTCOMES[outcome]
        else:
            assert (decision.action, decision.outcome) == (Action.RETRY, None)
    is_good = [OUTCOMES[outcome] is Action.ACK for _, _, outcome in messages]
    good = len(list(takewhile(bool, is_good)))
    assert decisions.acknowledged == good
    assert watch.is_ordered()
    assert begun >= set(range(min(good + 1, len(messages)))) if in_order else len(begun) == len(messages)
    assert watch.most <= concurrency
    if in_order and concurrency == 1:
        assert [number for number, *_ in watch.begun] == list(range(min(good + 1, len(messages))))


@each_listener
def test_in_order_what_is_given_back_does_not_overtake(decide: Decide) -> None:
    """Messages after a failed one are delivered again after the same delay, not before it."""
    failed = Outcome(Verdict.NEW, None, 5.0, ValueError("a"))
    messages = numbered([(None, NEW), (None, failed), (None, NEW), (None, NEW)])
    decisions = decide(messages, Watch(), order="in_order")
    assert [each.action for each in decisions] == [Action.ACK, *[Action.RETRY] * 3]
    assert [each.delay for each in decisions] == [0, 5, 5, 5]
    assert "behind" in decisions[3].reason


def test_in_order_what_comes_before_a_failure_still_runs() -> None:
    """A message that waits for its key still runs when a later message with another key has failed."""

    async def scenario() -> Decisions:
        has_failed = asyncio.Event()

        async def handle(message: Message) -> Outcome:
            if message[0] == 0:
                await has_failed.wait()
                for _ in range(10):  # until the failure is recorded
                    await asyncio.sleep(0)
            if message[0] == 2:
                has_failed.set()
            return message[2]

        messages = numbered([("a", NEW), ("a", NEW), ("b", Outcome(Verdict.DEAD)), ("a", NEW)])
        return await AsyncListener(order="in_order", concurrency=2, key=key_of).decide(messages, handle)

    decisions = asyncio.run(scenario())
    assert [each.action for each in decisions] == [Action.ACK] * 2 + [Action.DEAD_LETTER, Action.RETRY]


def test_threads_run_side_by_side() -> None:
    """At most `concurrency` messages run at the same time, and that many do."""
    meeting = threading.Barrier(4, timeout=60)
    watch = Watch(lambda _: meeting.wait())
    decisions = Listener(concurrency=4).decide(of_keys([None] * 12), watch)
    assert decisions.acknowledged == 12
    assert watch.most == 4


def test_tasks_run_side_by_side() -> None:
    """With tasks, four messages run at the same time, too."""

    async def scenario() -> Decisions:
        waiting: list[asyncio.Event] = []

        async def meet(message: Message) -> Outcome:
            waiting.append(asyncio.Event())
            if len(waiting) % 4:
                await waiting[-1].wait()
            else:
                assert len([each for each in waiting if not each.is_set()]) == 4
                for each in waiting:
                    each.set()
            return message[2]

        return await AsyncListener(concurrency=4).decide(of_keys([None] * 12), meet)

    assert asyncio.run(asyncio.wait_for(scenario(), 60)).acknowledged == 12


@each_listener
def test_keys_keep_their_order_under_concurrency(decide: Decide) -> None:
    """With a concurrency of eight, the messages of a key run one after the other, in the batch's order."""
    messages = of_keys([f"key-{number * 7 % 10}" for number in range(400)])
    watch = Watch(lambda _: threading.Event().wait(0.0001))
    decisions = decide(messages, watch, concurrency=8, key=key_of)
    assert decisions.acknowledged == 400
    assert watch.is_ordered()
    assert 1 < watch.most <= 8


def test_a_key_runs_once_in_all_calls() -> None:
    """Four threads share a listener. It never runs two messages with the same key at the same time, and its
    concurrency is shared by all of them."""
    watch = Watch(lambda _: threading.Event().wait(0.0005))
    listener = Listener(concurrency=8, key=key_of)
    messages = of_keys(["a", "b", "c"] * 30)
    for decisions in together([lambda: listener.decide(messages, watch)] * 4):
        assert decisions.acknowledged == 90
    assert len(watch.begun) == 360
    assert watch.overlaps == []
    assert 1 < watch.most <= 3


def test_a_key_runs_once_in_all_calls_of_a_loop() -> None:
    """Four tasks of an event loop share a listener. It never runs two messages with the same key at the same
    time."""

    async def scenario() -> Watch:
        watch, listener = Watch(), AsyncListener(concurrency=8, key=key_of)
        messages = of_keys(["a", "b", "c"] * 30)
        calls = (listener.decide(messages, watch.asynchronously) for _ in range(4))
        assert [each.acknowledged for each in await asyncio.gather(*calls)] == [90] * 4
        return watch

    watch = asyncio.run(scenario())
    assert len(watch.begun) == 360
    assert watch.overlaps == []
    assert watch.most == 3


def test_a_failure_in_one_call_does_not_touch_another() -> None:
    """In order, each call stops only at its own first failure. The keys of the messages that it gives back
    become free."""
    listener = Listener(order="in_order", concurrency=4, key=key_of)
    bad = numbered([("a", Outcome(Verdict.DEAD)), *[("a", NEW)] * 5])
    good = of_keys(["a"] * 6)

    def call(messages: list[Message]) -> Any:
        return lambda: listener.decide(messages, Watch()).acknowledged

    assert together([call(good), call(bad), call(good), call(bad)]) == [6, 0, 6, 0]
    assert listener.decide(good, Watch()).acknowledged == 6
