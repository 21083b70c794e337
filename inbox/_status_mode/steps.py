"""The steps of a message as one document, stored with its record. Pure."""

import copy
import json
from collections.abc import Iterator
from typing import Any, Literal

from inbox_outbox_base.checks.options import shown, utf8
from inbox_outbox_base.checks.results import LARGEST_RESULT, compact_json, encode_result
from inbox_outbox_base.errors.inbox import InvalidOption, InvalidResult

State = Literal["begun", "done", "undoing", "undone", "anew"]
_UNDONE = ("undoing", "undone")
LONGEST_NAME = 255
"""The most characters in a step's name."""


class Steps:
    """Steps by name, in the order in which they began."""

    def __init__(self, text: str | None) -> None:
        self._steps: dict[str, dict[str, Any]] = json.loads(text) if text else {}

    def __bool__(self) -> bool:
        return bool(self._steps)

    def state(self, name: str) -> State | None:
        """The recorded state of a step; None if nothing is recorded."""
        step = self._steps.get(name)
        return None if step is None else step["state"]

    def result(self, name: str) -> Any:
        """The result of a finished step: a copy, which the caller may change."""
        return copy.deepcopy(self._steps[name].get("result"))

    @property
    def pending(self) -> str | None:
        """The step that began, must not be repeated, and has no recorded end."""
        return next((name for name, step in self._steps.items() if step["state"] == "begun"), None)

    @property
    def undos(self) -> int:
        """How many finished steps have something to undo."""
        return sum(1 for _ in self.to_undo())

    @property
    def is_undoing(self) -> bool:
        """Whether a step has been undone, or may have been: the message can no longer succeed."""
        return bool(self._steps) and any(step["state"] in _UNDONE for step in self._steps.values())

    def to_undo(self) -> Iterator[str]:
        """Finished steps that have something to undo, the last step first."""
        for name, step in reversed(self._steps.items()):
            if step["state"] in ("done", "undoing") and step.get("undo"):
                yield name

    def has_undo(self, name: str) -> bool:
        """Whether a recorded step has something to undo once it is done."""
        return bool(self._steps.get(name, {}).get("undo"))

    def run(self, name: str) -> int:
        """The number of a step's current run, from 1. A new run begins when the message runs again after the
        step was undone."""
        return int(self._steps.get(name, {}).get("run", 1))

    def begun(self, name: str, *, has_undo: bool = False) -> "Steps":
        """A copy that records the start of a step that must not be repeated."""
        return self._with(name, {"state": "begun"} | ({"undo": True} if has_undo else {}))

    def done(self, name: str, result: Any, *, has_undo: bool) -> "Steps":
        """A copy that records a finished step.

        Raises:
            InvalidResult: the result is not JSON, or it is too large, or all results together are.
        """
        try:
            # As JSON reads it back, so that this attempt gets the same value as every later attempt.
            step: dict[str, Any] = {"state": "done", "result": json.loads(encode_result(result))}
        except InvalidResult as error:
            raise InvalidResult(f"step={name!r}: {error}") from None
        return self._with(name, step | ({"undo": True} if has_undo else {})).checked()

    def undoing(self, name: str) -> "Steps":
        """A copy that records that a step is being undone."""
        return self._with(name, self._steps[name] | {"state": "undoing"})

    def undone(self, name: str) -> "Steps":
        """A copy that records that a step was undone."""
        return self._with(name, self._steps[name] | {"state": "undone"})

    def without(self, name: str) -> "Steps":
        """A copy in which this run of a step never began."""
        others = {key: step for key, step in self._steps.items() if key != name}
        run = self.run(name)
        return self._of(others | {name: _anew(run)} if run > 1 else others)

    def anew(self) -> "Steps":
        """A copy in which the steps that were undone run once more. One whose undo has no end counts as
        finished."""
        return self._of(
            {
                name: _anew(self.run(name) + 1) if step["state"] == "undone" else _finished(step)
                for name, step in self._steps.items()
            }
        )

    def text(self) -> str:
        """The steps as they are stored."""
        return compact_json(self._steps)

    def checked(self) -> "Steps":
        """Itself, unless it is too large."""
        size = len(self.text().encode())
        if size > LARGEST_RESULT:
            last = next(reversed(self._steps))
            raise InvalidResult(
                f"step={last!r}: with it the results of all steps are {size:,} bytes, expected at most "
                f"{LARGEST_RESULT:,}: store a reference instead"
            )
        return self

    def _with(self, name: str, step: dict[str, Any]) -> "Steps":
        """A copy with this step; it keeps the number of its run. A step that runs again moves to the end."""
        others = {key: each for key, each in self._steps.items() if key != name or each["state"] != "anew"}
        run = self.run(name)
        return self._of(others | {name: step | ({"run": run} if run > 1 else {})})

    @classmethod
    def _of(cls, steps: dict[str, dict[str, Any]]) -> "Steps":
        made = cls(None)
        made._steps = steps
        return made


def _anew(run: int) -> dict[str, Any]:
    return {"state": "anew", "run": run}


def _finished(step: dict[str, Any]) -> dict[str, Any]:
    return step | {"state": "done"} if step["state"] == "undoing" else step


def checked_name(name: str) -> str:
    """The name, checked.

    Raises:
        InvalidOption: not 1 to 255 characters of UTF-8 without NUL.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
        raise InvalidOption(f"step={shown(name)}: expected 1 to {LONGEST_NAME} characters")
    utf8("step", name)
    return name
