"""The processor time of a Spark job, by kind of process (Linux only)."""

import os
from pathlib import Path

KINDS = {"java": "JVM", "python": "Python", "postgres": "server"}
"""What processes whose name begins like this are called; this process itself is not counted."""

_TICKS = os.sysconf("SC_CLK_TCK")


def used() -> dict[str, float]:
    """Seconds that the processes below this one have used so far, with those that have ended."""
    found: dict[int, tuple[int, str, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, rest = stat.read_text().partition(" (")
        except OSError:  # it has ended in between
            continue
        name, _, values = rest.rpartition(") ")
        fields = values.split()
        found[int(number)] = int(fields[1]), name, sum(map(int, fields[11:15])) / _TICKS
    seconds = dict.fromkeys(KINDS.values(), 0.0)
    ours = {os.getpid()}
    while more := {each for each, (parent, _, _) in found.items() if parent in ours} - ours:
        ours |= more
        for _, name, its in map(found.__getitem__, more):
            for begin, kind in KINDS.items():
                if name.startswith(begin):
                    seconds[kind] += its
    return seconds


def since(before: dict[str, float]) -> dict[str, float]:
    """Seconds used since then."""
    return {kind: seconds - before[kind] for kind, seconds in used().items()}
