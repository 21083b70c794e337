"""Exit codes that scripts can rely on."""

FAILED = 1
"""The database could not be reached, or refused."""
USAGE = 2
"""A wrong argument; nothing was done."""
NOT_FOUND = 3
"""`inbox show`: the inbox does not know this message."""
UNFINISHED = 4
"""`inbox purge`: the budget ran out before the work did."""
INTERRUPTED = 130
"""Ctrl-C: what was committed so far stays."""

EXPLAINED = (
    "Exit codes: 0 done; 1 the database could not be reached or refused; 2 wrong usage; "
    "3 no such message (inbox show); 4 the budget ran out before the work did (inbox purge); "
    "130 interrupted."
)
