"""Events for monitoring, and the hooks that receive them."""
