"""Exit codes that scripts can rely on."""

FAILED = 1
"""The database could not be reached, or rejected the command."""
USAGE = 2
"""A wrong argument; nothing was done."""
NOT_FOUND = 3
"""`inbox show`, `outbox trace`, `retry`, `drop` and others: there is no such message."""
UNFINISHED = 4
"""`inbox purge`, `partitions`, `outbox drain`: work is left."""
WRONG_STATUS = 5
"""`retry`, `outbox drop` and others: the message's status does not allow this."""
MISSING = 6
"""`audit`: a committed message is not sent, dead or not taken."""
LATE = 7
"""`outbox status --max-age`, `health`: a message has waited for longer."""
UNRECORDED = 8
"""`audit`: nothing is known to be missing, but messages may have left without a record."""
UNSAFE = 9
"""`check`: a table cannot keep a promise."""
NO_RELAY = 10
"""`health`: no relay is running."""
STOPPED = 11
"""`health`: messages are dead, held, halted, given up or refused as mismatches, or rows were set aside."""
OVERDUE = 12
"""`health`: keys are past their retention, and no purge deletes them; or partitions end soon."""
UNSEEN = 13
"""`health`: one half could not be seen; the other one is healthy."""
NOT_TAKEN = 14
"""`health`: the broker has taken nothing of a topic for too long."""
ILL = 15
"""`doctor`: something about the installation is wrong."""
INTERRUPTED = 130
"""Ctrl-C: everything committed so far stays."""

EXPLAINED = (
    "Exit codes: 0 done; 1 the database could not be reached, or refused; 2 wrong usage; "
    "3 no such message (show, trace, retry, drop and so on); "
    "4 work is left (inbox purge, partitions, outbox drain); "
    "5 the message's status does not allow this (retry, drop and so on); 6 messages are missing (audit); "
    "7 a message has waited for too long (outbox status --max-age, health); "
    "8 nothing is known to be missing, but not all messages have a record (audit); "
    "9 the database is unsafe (check); 10 no relay is running, 11 messages are dead, held or halted, "
    "12 no purge deletes old keys, or partitions end soon, 13 one half could not be seen, "
    "14 the broker takes nothing of a topic (health); 15 the installation is wrong (doctor); 130 interrupted."
)
