"""RabbitMQ: its address."""
