"""Deliver messages from Amazon SQS to a handler of an inbox, and move dead letters back (extra `sqs`)."""

from inbox._consuming.sqs.consumer import AsyncSQSConsumer, SQSConsumer
from inbox._consuming.sqs.redrive import redrive
from inbox_outbox_base.words.redriven import Redriven

__all__ = ["AsyncSQSConsumer", "Redriven", "SQSConsumer", "redrive"]
