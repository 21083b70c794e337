"""Tests of messages that are written in the caller's transaction."""
