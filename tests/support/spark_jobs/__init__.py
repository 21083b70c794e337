"""Spark applications for the tests: programs that run jobs on request, and faults at chosen points."""
