"""Amazon SQS and queues like it: the address, the client, and what a message looks like."""
