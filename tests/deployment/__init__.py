"""How the whole is deployed: connections, poolers, privileges, durability, replication."""
