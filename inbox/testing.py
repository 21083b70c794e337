"""The conformance suite for consumers of your own: docs/adapters.md. Needs pytest."""

import pytest

# Before the import: a failed test then shows the values.
pytest.register_assert_rewrite("inbox_outbox_base.brokers.conformance", "inbox._testing")

from inbox._testing.suite import ConsumerSuite  # noqa: E402

__all__ = ["ConsumerSuite"]
