"""What operators look at: the overviews on the terminal, and what in them needs somebody."""
