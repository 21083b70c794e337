"""RocketMQ: publisher."""
