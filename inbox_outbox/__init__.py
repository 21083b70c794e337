"""The command line `inbox-outbox` for operators. Needs the extra `cli`."""
