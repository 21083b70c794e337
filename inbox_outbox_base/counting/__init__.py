"""What is counted by the minute: how it is stored, summarised and read."""
