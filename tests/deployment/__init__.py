"""Deployment: connections, poolers, privileges, durability, replication."""
