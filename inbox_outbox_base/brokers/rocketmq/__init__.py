"""RocketMQ: publisher and consumer."""
