"""Receipt handles: with its newest one, a message is settled."""

_FIRST, _OFFSET, _LOG, _FIELDS = 0, 7, 8, 9
"""Of a handle's fields: the first offset that it covers, the message's, and the message's place in the
broker's log."""


def renewed(old: str, new: str) -> str:
    """The handle of a message that was hidden again, from its former one and RocketMQ's answer.

    The answer of a proxy in the broker's process covers the messages that came together, as the former handle
    did; but the broker now keeps this message by itself. RocketMQ accepts an acknowledgement with that handle
    and ignores it (apache/rocketmq, issue 9583). The answer has also lost the place in the log, by which
    RocketMQ finds what goes to the dead letters. A proxy on its own returns a handle without these mistakes.
    """
    former, fields = old.split(" "), new.split(" ")
    if len(former) < _FIELDS or len(fields) < _FIELDS or former[_OFFSET] != fields[_OFFSET]:
        return new
    return " ".join([fields[_OFFSET], *fields[_FIRST + 1 : _LOG], former[_LOG]])
