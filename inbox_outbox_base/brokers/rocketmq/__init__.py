"""RocketMQ: its address, its client, and what a message looks like."""
