"""Where messages are, and why they wait."""
