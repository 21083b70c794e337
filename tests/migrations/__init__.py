"""Tests of creating and upgrading the tables."""
