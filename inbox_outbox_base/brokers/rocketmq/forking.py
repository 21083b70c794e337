"""Forks: gRPC's threads do not exist in a forked process, which would crash when it uses gRPC.

A synchronous connection survives a fork if gRPC's fork support is on, as it is by default; an asynchronous
one never does.
"""

import os

from inbox_outbox_base.errors.inbox import InboxError

_OFF = {"0", "f", "false", "n", "no"}
_open_links = 0
_is_unusable = False


def check() -> None:
    """Make sure that this process can use gRPC.

    Raises:
        InboxError: it was forked from a process that used it.
    """
    if _is_unusable:
        raise InboxError(
            "this process was forked while its parent was connected to RocketMQ; fork before you connect, or "
            "start processes with multiprocessing's spawn or forkserver"
        )


def begin_synchronous() -> None:
    """This process uses gRPC through a synchronous connection. Raises as `check`."""
    if os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in _OFF:
        begin()
    else:
        check()


def begin() -> None:
    """This process uses gRPC until `end`. Raises as `check`."""
    global _open_links
    check()
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
