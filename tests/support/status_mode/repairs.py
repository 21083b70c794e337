"""Messages of status-table mode that did not succeed, made by real handlers."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from inbox import Claim, Record, Status, StatusInbox, Verdict
from inbox._status_mode.stores import Store
from inbox.errors import GiveUp

from .stores import CONSUMER, stored

KEY = "order-1"
PAYLOAD = b"\x00 payload"


def inbox_of(store: Store, **options: Any) -> StatusInbox:
    """The inbox of these tests, which shows verdicts."""
    fixed: dict[str, Any] = {"heartbeat": False, "keep_payload": True, "on_refusal": "return"}
    return StatusInbox(CONSUMER, store=store, **fixed | options)


def deliver(store: Store, body: Callable[[Claim], Any], key: str = KEY, **options: Any) -> Verdict:
    """Deliver a message once; what an attempt raises ends it."""
    with inbox_of(store, **options).claim(key, PAYLOAD) as claim:
        if not claim.is_new:
            return claim.verdict
        claim.result = body(claim)
    return Verdict.NEW


def fails(claim: Claim) -> None:
    """A handler that fails."""
    raise RuntimeError(f"attempt {claim.attempt}")


def gives_up(claim: Claim) -> None:
    """A handler that gives up, because no attempt can succeed."""
    raise GiveUp("no such article")


def halts(claim: Claim) -> Any:
    """A handler with a step whose outcome is unknown."""

    def times_out() -> None:
        raise TimeoutError

    return claim.step("charge", times_out, on_unknown="halt")


def has_ended(store: Store, status: Status, key: str = KEY) -> Record:
    """Bring a message to one of the statuses of messages that did not succeed."""
    body = {Status.FAILED: fails, Status.DEAD: gives_up, Status.HALTED: halts}[status]
    with pytest.raises((RuntimeError, GiveUp, TimeoutError)):
        deliver(store, body, key)
    record = stored(store, key)
    assert record.status is status
    return record


def history(store: Store) -> list[dict[str, Any]]:
    """The history in the record."""
    entries: list[dict[str, Any]] = json.loads(stored(store, KEY).history or "[]")
    return entries
