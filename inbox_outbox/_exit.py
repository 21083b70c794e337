"""Exit codes that scripts can rely on."""

FAILED = 1
"""The database could not be reached, or refused."""
USAGE = 2
"""A wrong argument; nothing was done."""
NOT_FOUND = 3
"""`inbox show`, `retry` and so on: the inbox does not know this message."""
UNFINISHED = 4
"""`inbox purge`: the budget ran out before the work did."""
WRONG_STATUS = 5
"""`inbox retry` and so on: the message is not in a status in which this can be done."""
INTERRUPTED = 130
"""Ctrl-C: what was committed so far stays."""

EXPLAINED = (
    "Exit codes: 0 done; 1 the database could not be reached or refused; 2 wrong usage; "
    "3 no such message (inbox show, retry and so on); 4 the budget ran out before the work did (inbox "
    "purge); 5 the message is not in a status in which this can be done (inbox retry and so on); "
    "130 interrupted."
)
