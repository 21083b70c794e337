"""Publishers that send outbox messages to Amazon SQS and queues like it with boto3 (the extra `sqs`)."""

from outbox._publishers.sqs.publisher import AsyncSQSPublisher, SQSPublisher

__all__ = ["AsyncSQSPublisher", "SQSPublisher"]
