"""What tests share: programs that are killed, models, fixtures."""
