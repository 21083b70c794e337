"""Promises of the whole: public names, packaging, events, documentation."""
