"""Durations and sizes, written for people."""

from datetime import timedelta


def duration(time: timedelta) -> str:
    """A duration in its largest suitable unit."""
    seconds = max(0.0, time.total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(count: int) -> str:
    """A number of bytes in its largest suitable unit."""
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count} B"
