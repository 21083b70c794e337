"""The conformance suite for publishers of your own: docs/adapters.md. Needs pytest."""

import pytest

# Before the import: a failed test then shows the values.
pytest.register_assert_rewrite("inbox_outbox_base.brokers.conformance", "outbox._testing")

from outbox._testing.suite import PublisherSuite  # noqa: E402

__all__ = ["PublisherSuite"]
