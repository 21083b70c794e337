"""Promises of the whole: public names, packaging, documentation, poolers, privileges, replication."""
