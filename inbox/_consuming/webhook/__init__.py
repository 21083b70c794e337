"""The receiver of webhooks."""
