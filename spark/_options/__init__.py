"""A writer's options."""
