"""NATS JetStream: its address, its client, and what travels in a message."""
