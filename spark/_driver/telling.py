"""What monitoring is told about a batch: by the driver, once Spark has collected what the tasks have done."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inbox_outbox_base.errors.secrets import strike_out
from inbox_outbox_base.monitoring.events import LONGEST_ERROR, Event, EventKind, Hooks, describe
from spark._executor.report import RowCounts
from spark._executor.task import Done

from .job import Job

_TRACEBACK = re.compile(r"\n {2,}\S.*\n(?=\S)")
"""Where a traceback ends and its error begins."""


@contextmanager
def told(hooks: Hooks, job: Job) -> Iterator[list[Done]]:
    """Tell the hooks that the batch begins, and how it ends; the body fills the list that it gets."""
    done: list[Done] = []
    if not hooks:
        yield done
        return
    about: dict[str, Any] = {"consumer": job.settings.consumer, "run": job.run, "batch": job.settings.batch}
    hooks(Event(kind=EventKind.LOAD_STARTED, **about))
    began = time.monotonic()
    try:
        yield done
    except BaseException as error:
        _tell_counts(hooks, about, done)
        seconds = time.monotonic() - began
        hooks(Event(kind=EventKind.LOAD_FAILED, seconds=seconds, error=_said(error), **about))
        raise
    _tell_counts(hooks, about, done)
    seconds = time.monotonic() - began
    hooks(Event(kind=EventKind.LOAD_ENDED, seconds=seconds, partitions=len(done), **about))


def _said(error: BaseException) -> str:
    """The error without passwords; of a task's error without its traceback."""
    return strike_out(_TRACEBACK.split(describe(error))[-1])[:LONGEST_ERROR]


def _tell_counts(hooks: Hooks, about: dict[str, Any], done: list[Done]) -> None:
    """What an earlier submission has committed was told by that one."""
    total = sum((each.counts for each in done if not each.replayed), RowCounts())
    for kind, count in (
        (EventKind.LOADED, total.new),
        (EventKind.DUPLICATE, total.duplicate + total.repeated),
        (EventKind.MISMATCH, total.mismatch),
        (EventKind.REJECTED, total.rejected),
    ):
        if count:
            hooks(Event(kind=kind, count=count, **about))
