"""What the tests of relays share: their processes, and what happens to them."""
