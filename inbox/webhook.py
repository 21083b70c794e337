"""Take webhooks, signed as Standard Webhooks describes, in a handler of an inbox: an ASGI application."""

from inbox._consuming.webhook.receiver import WebhookReceiver

__all__ = ["WebhookReceiver"]
