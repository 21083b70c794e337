"""What the tests of brokers share."""
