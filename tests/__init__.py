"""The tests. They run on real servers: see `tests.services`."""
