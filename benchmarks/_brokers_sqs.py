"""SQS, as ElasticMQ speaks it: our consumer and publisher, and boto3 alone."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter, process_time
from typing import Any

from inbox import Delivery, Outcome
from inbox.sqs import SQSConsumer
from outbox import Envelope
from outbox.sqs import SQSPublisher
from tests.support.brokers.sqs_queues import SQSQueues

from ._brokers_lab import Count, Speed, grid, messages_of, rate_ratios, speed, speeds_of
from ._brokers_messages import BATCH, envelopes, send
from ._lab import Lab
from ._measure import Report, figure

_MOST = 10
_IN_FLIGHT = 8
"""Requests, as many as the publisher's."""
_HIDDEN = 60
_TARGET = 0.9


class Queueing:
    """A standard queue."""

    def __init__(self, queues: SQSQueues) -> None:
        self._queues = queues
        self.publisher = SQSPublisher(queues.url, timeout=60)

    def new_topic(self, workers: int) -> str:
        """As `Broker.new_topic`."""
        return self._queues.new()

    def close(self) -> None:
        """Close the publisher."""
        self.publisher.close()

    def consumer(self, topic: str, workers: int, handler: Callable[[Delivery], Outcome]) -> SQSConsumer:
        """As `Broker.consumer`."""
        return SQSConsumer(
            self._queues.url,
            topic,
            handler,
            visibility=_HIDDEN,
            concurrency=workers,
            dead_letter=lambda *_: None,
        )

    def consume_bare(self, topic: str, workers: int, work: Callable[[bytes], object], count: Count) -> None:
        """Each worker receives ten messages, and deletes each when it has handled it."""
        ended = threading.Event()
        count.on_end = ended.set
        client, url = self._queues.client, self._queues.at(topic)

        def handle(_: int) -> None:
            try:
                while not ended.is_set():
                    answer = client.receive_message(
                        QueueUrl=url,
                        MaxNumberOfMessages=_MOST,
                        VisibilityTimeout=_HIDDEN,
                        WaitTimeSeconds=1,
                        MessageAttributeNames=["All"],
                    )
                    for message in answer.get("Messages", ()):
                        work(message["Body"].encode())
                        client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            finally:
                ended.set()

        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(handle, range(workers)):
                pass


def publish_to_sqs(lab: Lab, queues: SQSQueues) -> Report:
    """To both kinds of queues, messages with a key each."""
    report = Report()
    publisher = SQSPublisher(queues.url, timeout=60)
    for kind in ("standard", "FIFO"):
        queue = queues.new(fifo=kind == "FIFO")
        turns = {
            "publisher": _turn(lab, queue, partial(send, publisher)),
            "bare client": _turn(lab, queue, partial(_send_bare, queues)),
        }
        title = f"SQS, a {kind} queue"
        speeds = speeds_of(lab, title, turns)
        found = rate_ratios(speeds, "publisher", "bare client")
        report.figures.append(figure(f"{title}: publisher / bare client", found, at_least=_TARGET))
        report.grids.append(grid(f"speed to {title}", speeds))
    publisher.close()
    return report


def _turn(lab: Lab, queue: str, send_all: Callable[[Sequence[Envelope]], None]) -> Callable[[], Speed]:
    def turn() -> Speed:
        messages = envelopes(queue, messages_of(lab))
        begun = perf_counter(), process_time()
        send_all(messages)
        return speed(len(messages), begun, (perf_counter(), process_time()))

    return turn


def _send_bare(queues: SQSQueues, messages: Sequence[Envelope]) -> None:
    url, is_fifo = queues.at(messages[0].topic), messages[0].topic.endswith(".fifo")

    def request(some: Sequence[Envelope]) -> None:
        entries = [_entry(place, each, is_fifo=is_fifo) for place, each in enumerate(some)]
        answer = queues.client.send_message_batch(QueueUrl=url, Entries=entries)
        if len(answer["Successful"]) != len(some):
            raise AssertionError(answer["Failed"])

    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        for start in range(0, len(messages), BATCH):
            batch = messages[start : start + BATCH]
            for _ in pool.map(request, (batch[at : at + _MOST] for at in range(0, len(batch), _MOST))):
                pass


def _entry(place: int, envelope: Envelope, *, is_fifo: bool) -> dict[str, Any]:
    """As a program without an outbox would write it."""
    texts = {
        "id": envelope.id,
        "key": envelope.key,
        "content-type": envelope.content_type,
        "created": envelope.created_at.isoformat(),
    }
    group = {"MessageGroupId": envelope.key, "MessageDeduplicationId": envelope.id} if is_fifo else {}
    attributes = {name: {"DataType": "String", "StringValue": text} for name, text in texts.items()}
    body = envelope.payload.decode()
    return {"Id": str(place), "MessageBody": body, "MessageAttributes": attributes, **group}
