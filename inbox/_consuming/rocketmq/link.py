"""A connection to a proxy of RocketMQ, on which a group receives messages."""

import asyncio
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from inbox_outbox_base.brokers.rocketmq import forking
from inbox_outbox_base.brokers.rocketmq.address import Address
from inbox_outbox_base.brokers.rocketmq.client import (
    SDK_VERSION,
    ClientId,
    RpcEndpoints,
    Signature,
    aio,
    described,
    grpc,
    protocol,
    text_of,
)

_log = logging.getLogger("inbox.rocketmq")
TIMEOUT = 5.0
"""Seconds that RocketMQ has for an answer."""
POLL = 5
"""Seconds that a request waits for messages; RocketMQ accepts no fewer."""
_BEAT = 10.0
_LONGEST_HIDING = 11 * 3_600
"""RocketMQ accepts 12 hours."""
_OPTIONS = [
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Links share no connection: a new link must not get a connection that hangs.
    ("grpc.use_local_subchannel_pool", 1),
]

_FIRST, _OFFSET, _LOG, _FIELDS = 0, 7, 8, 9
"""Of a receipt handle's fields, the first offset that it covers, the message's offset and the message's place
in the broker's log; and the number of fields."""


class Refusal(Exception):
    """RocketMQ answered that it did not do what was asked."""

    def __init__(self, status: Any) -> None:
        super().__init__(described(status))
        self.code: int = status.code


@dataclass(frozen=True, slots=True)
class Membership:
    """Who receives what, and how to reach RocketMQ."""

    address: Address
    group: str
    filters: Mapping[str, str]
    """For each topic: a tag, several tags separated by ||, or * for all messages."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What RocketMQ says about the group."""

    deliveries: int
    """RocketMQ buries a message after this many deliveries (retryMaxTimes + 1); 0 if it does not say."""
    in_order: bool
    """Whether queues of FIFO topics are delivered in order (consumeMessageOrderly)."""


class Calls:
    """Requests to the proxies at one place; each has a time limit.

    Raises:
        InboxError: in each process that was forked while its parent had such connections.
    """

    def __init__(self, member: Membership, endpoints: Any = None) -> None:
        address = member.address
        self._configuration = address.configuration(int(TIMEOUT))
        self._member = member
        self._id = ClientId().client_id
        self._endpoints = self._configuration.rpc_endpoints.endpoints if endpoints is None else endpoints
        forking.begin()
        place = RpcEndpoints(self._endpoints).facade
        if address.has_tls:
            self._channel = aio.secure_channel(place, grpc.ssl_channel_credentials(), _OPTIONS)
        else:
            self._channel = aio.insecure_channel(place, _OPTIONS)
        self._stub = protocol.MessagingServiceStub(self._channel)

    def _signed(self) -> Any:
        return Signature.metadata(self._configuration, self._id)

    async def _ask(self, method: str, **fields: Any) -> Any:
        request = getattr(protocol, f"{method}Request")(**fields)
        call = getattr(self._stub, method)
        answer = await call(request, metadata=self._signed(), timeout=TIMEOUT)
        _check(answer.status)
        return answer

    async def route(self, topic: str) -> list[Any]:
        """The queues of a topic that can be read."""
        answer = await self._ask("QueryRoute", topic={"name": topic}, endpoints=self._endpoints)
        readable = (protocol.Permission.READ, protocol.Permission.READ_WRITE)
        return [queue for queue in answer.message_queues if queue.permission in readable]

    async def send(self, message: Any) -> None:
        """Send a message."""
        answer = await self._ask("SendMessage", messages=[message])
        for each in answer.entries:
            _check(each.status)

    async def disconnect(self) -> None:
        """Close the connection when its requests have had their answers; never raises."""
        forking.end()
        with suppress(Exception):
            # Without this grace, gRPC would cancel unanswered requests and the tasks that wait for them.
            await self._channel.close(2 * TIMEOUT)


class RocketMQLink(Calls):
    """A connection on which messages are received and settled.

    `ended` is set when RocketMQ does not answer, or has restarted and so forgotten its clients: then open
    another link. Messages that were received on this link can be settled on the next link.
    """

    settings: GroupSettings

    def __init__(self, member: Membership, endpoints: Any) -> None:
        super().__init__(member, endpoints)
        self.ended = asyncio.Event()
        self._settled = asyncio.Event()
        self._failure: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect, and wait for the group's settings.

        Raises:
            AioRpcError: nobody answers.
            TimeoutError: the group's settings do not arrive, for example because there is no such group.
        """
        self._stream = self._stub.Telemetry(metadata=self._signed())
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]
        async with asyncio.timeout(TIMEOUT):
            await self.ask_for_settings()
            await self._settled.wait()
        if self._failure is not None:
            raise self._failure

    async def ask_for_settings(self) -> None:
        """Let RocketMQ send the group's settings, which an operator may have changed."""
        await self._stream.write(protocol.TelemetryCommand(settings=self._announcement()))

    async def close(self) -> None:
        """Tell RocketMQ to forget this client, and disconnect; never raises."""
        for task in self._tasks:
            task.cancel()
        with suppress(Exception):
            self._stream.cancel()
            if not self.ended.is_set():
                await self._ask("NotifyClientTermination", group={"name": self._member.group})
        await self.disconnect()

    async def receive(self, queue: Any, count: int, hidden: int, into: list[Any]) -> None:
        """Receive up to `count` messages of a queue's broker; none, if there are none for five seconds.
        Nobody else receives them for `hidden` seconds."""
        topic = queue.topic.name
        request = protocol.ReceiveMessageRequest(
            group={"name": self._member.group},
            message_queue=queue,
            filter_expression=self._filter(topic),
            batch_size=count,
            auto_renew=False,
        )
        request.invisible_duration.seconds = hidden
        request.long_polling_timeout.seconds = POLL
        call = self._stub.ReceiveMessage(request, metadata=self._signed(), timeout=POLL + TIMEOUT)
        async for answer in call:
            if answer.HasField("message"):
                # RocketMQ splits a name with a % into a namespace and a rest, but understands only the whole.
                answer.message.topic.CopyFrom(queue.topic)
                into.append(answer.message)
            elif answer.HasField("status"):
                _check(answer.status)

    async def acknowledge(self, message: Any) -> None:
        """Tell RocketMQ to deliver the message to nobody in the group again."""
        properties = message.system_properties
        entry = {"message_id": properties.message_id, "receipt_handle": properties.receipt_handle}
        answer = await self._ask("AckMessage", **self._about(message), entries=[entry])
        for each in answer.entries:
            _check(each.status)

    async def hide(self, message: Any, seconds: float) -> None:
        """Let RocketMQ deliver the message again after this many seconds from now, at least one."""
        properties = message.system_properties
        whole = max(1, min(math.ceil(seconds), _LONGEST_HIDING))
        answer = await self._ask(
            "ChangeInvisibleDuration",
            **self._about(message),
            receipt_handle=properties.receipt_handle,
            message_id=properties.message_id,
            invisible_duration={"seconds": whole},
        )
        # Only the newest handle counts, although RocketMQ says OK to an acknowledgement with an old handle.
        properties.receipt_handle = _renewed(properties.receipt_handle, answer.receipt_handle)

    async def bury(self, message: Any, attempts: int) -> None:
        """Move the message to the group's dead letters, the topic %DLQ%<group>."""
        properties = message.system_properties
        await self._ask(
            "ForwardMessageToDeadLetterQueue",
            **self._about(message),
            receipt_handle=properties.receipt_handle,
            message_id=properties.message_id,
            delivery_attempt=attempts,
            max_delivery_attempts=attempts,
        )

    def _about(self, message: Any) -> dict[str, Any]:
        return {"group": {"name": self._member.group}, "topic": message.topic}

    def _filter(self, topic: str) -> Any:
        return {"type": protocol.FilterType.TAG, "expression": self._member.filters[topic]}

    def _announcement(self) -> Any:
        settings = protocol.Settings(
            client_type=protocol.ClientType.SIMPLE_CONSUMER,
            access_point=self._endpoints,
            request_timeout={"seconds": int(TIMEOUT)},
        )
        settings.subscription.group.name = self._member.group
        for topic in self._member.filters:
            settings.subscription.subscriptions.add(topic={"name": topic}, expression=self._filter(topic))
        settings.subscription.long_polling_timeout.seconds = POLL
        settings.user_agent.language = protocol.Language.PYTHON
        settings.user_agent.version = SDK_VERSION
        return settings

    async def _read(self) -> None:
        """Keep the settings that RocketMQ sends, until the connection ends."""
        try:
            while (answer := await self._stream.read()) is not aio.EOF:
                if answer.HasField("settings"):
                    told = answer.settings
                    self.settings = GroupSettings(told.backoff_policy.max_attempts, told.subscription.fifo)
                    self._settled.set()
        except Exception as error:  # noqa: BLE001 - the link has ended, whatever the reason
            self._failure = error
        else:
            self._failure = ConnectionError("RocketMQ has ended the connection")
        self.ended.set()
        self._settled.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT)
            try:
                await self._ask(
                    "Heartbeat",
                    group={"name": self._member.group},
                    client_type=protocol.ClientType.SIMPLE_CONSUMER,
                )
            except Refusal as error:
                _log.debug("heartbeat refused: %s", error)
            except grpc.RpcError as error:
                _log.info("RocketMQ does not answer: %s", text_of(error))
                self.ended.set()
                return


def _check(status: Any) -> None:
    if status.code not in (protocol.Code.OK, protocol.Code.MULTIPLE_RESULTS, protocol.Code.MESSAGE_NOT_FOUND):
        raise Refusal(status)


def _renewed(old: str, new: str) -> str:
    """The handle of a message that was hidden again, made from its former handle and RocketMQ's answer.

    A proxy in the broker's process answers with two mistakes. Its handle covers all messages that came
    together, as the former handle did, but the broker now keeps this message by itself: RocketMQ accepts an
    acknowledgement with such a handle and ignores it (apache/rocketmq, issue 9583). And the handle lacks the
    place in the log, by which RocketMQ finds dead letters. A separate proxy makes neither mistake.
    """
    former, fields = old.split(" "), new.split(" ")
    if len(former) < _FIELDS or len(fields) < _FIELDS or former[_OFFSET] != fields[_OFFSET]:
        return new
    return " ".join([fields[_OFFSET], *fields[_FIRST + 1 : _LOG], former[_LOG]])
