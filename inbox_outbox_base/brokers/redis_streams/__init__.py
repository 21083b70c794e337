"""Redis Streams: what the publisher and the consumer share."""
