"""Tests of the exactly-once path."""
