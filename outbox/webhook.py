"""Publishers that send outbox messages as signed webhooks (extra `webhook`)."""

from outbox._publishers.webhook.publisher import AsyncWebhookPublisher, WebhookEndpoint, WebhookPublisher

__all__ = ["AsyncWebhookPublisher", "WebhookEndpoint", "WebhookPublisher"]
