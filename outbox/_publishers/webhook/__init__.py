"""Publishers that send messages as webhooks."""
