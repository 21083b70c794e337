"""Publishers and consumers for Kafka, RabbitMQ, RocketMQ and Redis Streams."""
