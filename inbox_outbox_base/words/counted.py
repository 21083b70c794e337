"""Numbers of things, written for people."""


def counted(number: int, noun: str) -> str:
    """A number of things, of which one has no s: 1 message, 2 messages."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
