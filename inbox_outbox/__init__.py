"""The operator's door: the command line `inbox-outbox`. Needs the extra `cli`."""
