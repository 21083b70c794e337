"""Deliver messages from Amazon SQS and queues like it to a handler of an inbox (extra `sqs`)."""

from inbox._consuming.sqs.consumer import AsyncSQSConsumer, SQSConsumer

__all__ = ["AsyncSQSConsumer", "SQSConsumer"]
