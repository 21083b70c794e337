"""The conformance suite of publishers."""
