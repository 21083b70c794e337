"""How a relay learns at once of a commit."""
