"""Tests of `inbox_outbox.testing`."""
