"""What goes wrong with duplicates in RocketMQ, and what takes effect: ``python -m examples.rocketmq_dedup``.

It starts a RocketMQ of its own, or uses the one in INBOX_OUTBOX_TEST_ROCKETMQ_URL, and runs five acts: a
producer that sends an order twice; a consumer that hangs until RocketMQ gives its message to another one; a
consumer that is killed between COMMIT and acknowledgement; a handler that calls another service and is still
running when the message comes a second time; and a message that fails sixteen times.
"""
