"""Forks: gRPC's threads do not exist in a forked process, which would crash when it uses gRPC."""

import os

from inbox_outbox_base.errors.inbox import InboxError

_open_links = 0
_is_unusable = False


def begin() -> None:
    """This process uses gRPC until `end`.

    Raises:
        InboxError: it was forked from a process that did.
    """
    global _open_links
    if _is_unusable:
        raise InboxError(
            "this process was forked while its parent was connected to RocketMQ; fork before you connect, or "
            "start processes with multiprocessing's spawn or forkserver"
        )
    _open_links += 1


def end() -> None:
    """The counterpart of `begin`."""
    global _open_links
    _open_links -= 1


def _after_fork() -> None:
    global _is_unusable
    _is_unusable = _is_unusable or _open_links > 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
