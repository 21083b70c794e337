"""Refused messages are recorded, so that somebody can list them: in transactions of their own, and only if
there are any."""
