"""RabbitMQ: consumer and publisher."""
