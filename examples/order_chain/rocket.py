"""RocketMQ: a FIFO topic for each step, and a group whose queues are delivered in order."""

from dataclasses import dataclass

from examples.order_chain import worker
from examples.order_chain.shop import TOPICS
from examples.order_chain.steps import Step
from inbox.rocketmq import RocketMQConsumer
from outbox.rocketmq import RocketMQPublisher
from tests.support.brokers.rocketmq_remoting import Remoting

QUEUES = 8
RETRIES = 100
"""Deliveries of a message after the first, before RocketMQ buries it: each kill costs one."""
INVISIBLE = 10
"""Seconds after which the messages of a killed consumer are delivered again; RocketMQ's least."""


@dataclass(frozen=True, slots=True)
class Rocket:
    """The RocketMQ whose proxy is at `proxy`, and whose broker, where topics are made, is at `broker`."""

    proxy: str
    broker: str

    def publisher(self) -> RocketMQPublisher:
        """A publisher."""
        return RocketMQPublisher(f"rocketmq://{self.proxy}", timeout=worker.TIMEOUT)

    def consumer(self, topic: str, handler: Step) -> RocketMQConsumer:
        """A consumer of the topic's group."""
        return RocketMQConsumer(
            f"rocketmq://{self.proxy}",
            topic,
            handler,
            group=topic,
            invisible=INVISIBLE,
            concurrency=worker.AT_ONCE,
            backoff=worker.BACKOFF,
        )

    def create(self) -> None:
        """Create topics and groups."""
        tool = Remoting(self.broker)
        for topic in TOPICS:
            tool.make_topic(topic, "FIFO", QUEUES)
            tool.make_group(topic, in_order=True, retries=RETRIES)

    def delete(self) -> None:
        """Delete topics and groups."""
        tool = Remoting(self.broker)
        for topic in TOPICS:
            tool.delete_topic(topic)
            tool.delete_group(topic)

    def waiting(self) -> int:
        """None: RocketMQ does not tell. The trial waits until every message that was sent has been taken."""
        return 0

    def dead(self) -> int:
        """Messages among the groups' dead letters."""
        tool = Remoting(self.broker)
        return sum(len(tool.stored(f"%DLQ%{topic}", 0)) for topic in TOPICS)
