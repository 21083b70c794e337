"""The values that the parts exchange: what comes in, and what goes out."""
