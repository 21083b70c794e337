"""The one call of the kit."""

import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ._address import DatabaseAddress, address_of
from ._handler_process import Launcher, UnusableHandler
from ._plan import PlannedFault, plan, sample
from ._process import HandlerTarget
from ._proxy import WireProxy
from ._report import FaultKind, FaultReport, Violation
from ._stage import Spot, Stage
from ._trials import FaultTrials, TrialOptions

_NONE: Mapping[str, str] = MappingProxyType({})
_ON_WIRE = (FaultKind.CUT, FaultKind.ANSWER_LOST)


def exactly_once(
    handler: Callable[[Any], Any] | str,
    messages: Callable[[int], Sequence[Any]],
    *,
    url: str,
    effects: Callable[[], Mapping[Any, int]],
    seed: int | None = None,
    lease: float | None = None,
    restart: Callable[[], None] | None = None,
    environ: Mapping[str, str] = _NONE,
    only: Iterable[FaultKind | str] = (),
    limit: int | None = None,
) -> FaultReport:
    """Run a handler under every fault that an exactly-once guarantee speaks of, and say which of its effects
    were doubled or lost.

    Each fault gets messages of its own, in a process of its own that can be killed. A message is delivered
    again until the handler answers; an exception means that it has not. Then what `effects` counts is
    compared with a run without a fault. Statements are seen on the wire, so any driver will do, and the
    handler need not know of the kit.

    Args:
        handler: a function of one message, or a coroutine function, at the top of its module; or its name as
            "module:function". It acknowledges its message by returning.
        messages: a function that returns the messages of one run. It gets the run's number, nine or ten
            digits, which has to be in the ids of the messages, and so in the rows that they lead to.
        url: where the database is: PostgreSQL, MySQL, MariaDB or SQLite. The handler's process gets the
            proxy's address in its place, in each environment variable that is a URL with this host and port.
            It reaches no other database of the server, except those that variables in `environ` name.
            No other program may write to the tables meanwhile.
        effects: a function that reads from the database, without the proxy, how often each business row is
            there: a Counter. Rows of a run may differ from those of another only by the run's number.
        seed: in which order the faults are tried, and which ones if there is a `limit`. Without one it is
            drawn; the report names it.
        lease: seconds after which what a handler holds for its message has run out, such as a lease or a
            lock in Redis. `LEASE_LOST` and `LATE` wait that long; without it, the first is not tried.
        restart: a function that crashes the database's server and returns when it runs again. Give it only if
            the server is the test's own; without it, restarts are not tried.
        environ: further environment variables of the handler's process.
        only: the kinds of faults to try; all of them if it is empty.
        limit: how many faults to try at most, some of each kind.

    Raises:
        UnusableHandler: the handler cannot be tried: it cannot be loaded, raises without a fault, does not
            connect to `url` or connects to another database, or has effects that differ from run to run.
        ValueError: an argument cannot be used.
        TypeError: an argument is of the wrong type.
    """
    started = time.monotonic()
    address, target = address_of(url), _target(handler)
    kinds = _kinds([only] if isinstance(only, str) else only)
    _check(lease=lease, limit=limit, seed=seed, messages=messages, effects=effects)
    seed = secrets.randbelow(10**6) if seed is None else seed
    chance = random.Random(seed)
    stage = Stage()
    proxy = None
    if address.dialogue:
        proxy = WireProxy(address.connect, address.dialogue.wire, stage, address.databases(environ))
    try:
        if proxy is not None:
            stage.on_begin = lambda pid: setattr(proxy, "owner", pid)
        environment = address.environment(proxy.port if proxy else 0, environ)
        launcher = Launcher(target, environment, stage)
        try:
            launcher.forks = launcher.forks and not (proxy and proxy.opened)
            options = TrialOptions(messages=messages, effects=effects, lease=lease, restart=restart)
            trials = FaultTrials(launcher, stage, options, chance)
            spots, number = trials.without_fault()
            if proxy is not None and (proxy.refused or not proxy.opened):
                raise UnusableHandler(_elsewhere(address))
            reasons = _reasons(address, spots, number, lease=lease, restart=restart)
            faults = plan(spots, {*reasons, *(set(FaultKind) - kinds)})
            if not faults:
                raise UnusableHandler(f"only: none of these can be tried: {_words(reasons, kinds)}")
            tried, violations, missed = _try(trials, faults, sample(faults, limit, chance))
        finally:
            launcher.close()
    except UnusableHandler:
        if proxy is not None and proxy.refused:
            raise UnusableHandler(_another(address, proxy.refused)) from None
        raise
    finally:
        if proxy is not None:
            proxy.close()
    not_tried = _words(reasons, kinds)
    if limit is not None and limit < len(faults):
        not_tried["others"] = f"{len(faults) - limit} more faults; limit={limit}"
    return FaultReport(
        handler=f"{target.module}:{target.name}",
        database=address.name,
        seed=seed,
        tried={kind: tried[kind] for kind in FaultKind if tried[kind]},
        violations=violations,
        not_tried=not_tried | missed,
        seconds=time.monotonic() - started,
    )


def _try(
    trials: FaultTrials, faults: Sequence[PlannedFault], chosen: Sequence[PlannedFault]
) -> tuple[Counter[FaultKind], tuple[Violation, ...], dict[str, str]]:
    tried = Counter[FaultKind]()
    found: dict[PlannedFault, list[Violation]] = {}
    missed = {}
    for fault in chosen:
        violations = trials.attempt(fault)
        if violations is None:
            missed[f"{fault.kind} {fault.where}"] = "not met again: perhaps it is in the background"
        else:
            tried[fault.kind] += 1
            found[fault] = violations
    return tried, tuple(each for fault in faults for each in found.get(fault, ())), missed


def _reasons(
    address: DatabaseAddress,
    spots: Sequence[Spot],
    messages: int,
    *,
    lease: float | None,
    restart: Callable[[], None] | None,
) -> dict[FaultKind, str]:
    """Why kinds of faults are not tried."""
    reasons: dict[FaultKind, str] = {}
    if address.dialogue is None:
        reasons |= dict.fromkeys(_ON_WIRE, "SQLite's statements pass no wire")
        reasons[FaultKind.RESTARTED] = "SQLite has no server"
        if not spots:
            unmarked = "no statement is seen on SQLite, and the handler marks no point and no effect"
            reasons |= dict.fromkeys((FaultKind.KILLED, FaultKind.AT_ONCE, FaultKind.LEASE_LOST), unmarked)
    elif restart is None:
        reasons[FaultKind.RESTARTED] = "restart= is not given"
    if lease is None:
        reasons.setdefault(FaultKind.LEASE_LOST, "lease= is not given")
    if messages < 2:
        reasons[FaultKind.OUT_OF_ORDER] = "a run has one message"
    return reasons


def _words(reasons: Mapping[FaultKind, str], kinds: Collection[FaultKind]) -> dict[str, str]:
    return {str(kind): reason for kind, reason in reasons.items() if kind in kinds}


def _target(handler: Callable[[Any], Any] | str) -> HandlerTarget:
    if isinstance(handler, str):
        module, colon, name = handler.partition(":")
        if not (module and colon and name):
            raise ValueError(f"handler: expected module:function, got {handler!r}")
        return HandlerTarget(module, None, name)
    name = getattr(handler, "__qualname__", "")
    if not callable(handler) or not name or "<" in name:
        raise ValueError(f"handler: expected a function at the top of its module, got {handler!r}")
    file = getattr(sys.modules.get(handler.__module__), "__file__", None)
    return HandlerTarget(handler.__module__, file, name)


def _kinds(only: Iterable[FaultKind | str]) -> set[FaultKind]:
    try:
        return {FaultKind(kind) for kind in only} or set(FaultKind)
    except ValueError as error:
        raise ValueError(f"only: {error}; there are: {', '.join(FaultKind)}") from None


def _check(*, lease: float | None, limit: int | None, seed: int | None, **functions: object) -> None:
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"{name}: expected a function, got {function!r}")
    if lease is not None and not 0 < lease <= 3600:
        raise ValueError(f"lease: expected more than 0 and at most 3600 seconds, got {lease!r}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit: expected at least 1, got {limit!r}")
    if seed is not None and not isinstance(seed, int):
        raise TypeError(f"seed: expected a whole number, got {seed!r}")


def _another(address: DatabaseAddress, databases: Collection[str]) -> str:
    name = min(databases)
    variables = address.names_of(name)
    which = f", which {' and '.join(sorted(variables))} in the environment names" if variables else ""
    return (
        f"url: it names the database {address.database!r}, but the handler asked for {name!r}{which}; "
        "nothing was sent there. environ= sets the variable; where the handler needs both, let a variable in "
        "environ= name the other one"
    )


def _elsewhere(address: DatabaseAddress) -> str:
    return (
        f"url: the handler opened no connection to {address.host}:{address.port}: it has to read the address "
        "from an environment variable that holds a URL with the same host and port. environ= sets one, "
        "unless your test files, imported again there, overwrite it: let them use os.environ.setdefault"
    )
