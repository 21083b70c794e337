"""Spark applications for the tests: programs that run jobs when told to, and faults at chosen points."""
