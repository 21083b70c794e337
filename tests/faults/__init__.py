"""The fault kit: what it finds in handlers that are right and in handlers with a mistake."""
