"""The conformance suite of consumers."""
