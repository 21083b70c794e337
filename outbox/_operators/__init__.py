"""What operators do with messages, and how they see them."""
