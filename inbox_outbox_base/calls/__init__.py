"""How functions are called: in tasks, threads and loops, and until a signal arrives."""
