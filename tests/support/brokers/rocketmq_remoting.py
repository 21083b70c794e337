"""RocketMQ's protocol between its tools and a broker: creates topics and groups, reads stored messages.

Its own tools are Java programs that take seconds to start.
"""

import json
import socket
import struct
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_PULL, _MAKE_TOPIC, _MAKE_GROUP, _LAST_OFFSET, _DELETE_TOPIC, _DELETE_GROUP = 11, 17, 200, 30, 215, 207
_CONFIGURATION, _RUNTIME, _ROUTE, _NO_ROUTE, _SEND, _SETTLE = 26, 28, 105, 17, 10, 15
_NOTHING_THERE = {17, 19, 20, 21}
"""Answers to a pull: no such topic, no message, and two kinds of an offset that is not there."""
_BETWEEN_NAME_AND_VALUE, _BETWEEN_PROPERTIES = "\x01", "\x02"
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as the broker has stored it."""

    queue: int
    offset: int
    body: bytes
    properties: Mapping[str, str]
    """Also those of RocketMQ itself, as KEYS and UNIQ_KEY."""


class Remoting:
    """Requests to the broker at `address`, each on a new connection."""

    def __init__(self, address: str) -> None:
        self._address = address

    def make_topic(self, name: str, kind: str, queues: int) -> None:
        """Create a topic; `kind` is NORMAL, FIFO, DELAY or TRANSACTION."""
        header = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
            "attributes": f"+message.type={kind}",
        }
        self._ask(_MAKE_TOPIC, header)
        self._wait_until_known(name)

    def make_group(self, name: str, *, in_order: bool, retries: int) -> None:
        """Create a consumer group; a message becomes a dead letter after `retries` redeliveries."""
        group = {
            "groupName": name,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "consumeMessageOrderly": in_order,
            "retryMaxTimes": retries,
            "retryQueueNums": 1,
            "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 1,
        }
        self._ask(_MAKE_GROUP, {}, json.dumps(group).encode())

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages."""
        self._ask(_DELETE_TOPIC, {"topic": name})

    def delete_group(self, name: str) -> None:
        """Delete a group and its offsets."""
        self._ask(_DELETE_GROUP, {"groupName": name, "cleanOffset": "true"})

    def settle(self, group: str, topic: str, offset: int) -> None:
        """Say that the group has consumed a topic's first queue up to this offset, as clients of RocketMQ 4
        do."""
        header = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
        self._ask(_SETTLE, header)

    def put(self, topic: str, body: bytes, properties: str) -> None:
        """Write a message with any properties; a proxy would check them."""
        header = {
            "producerGroup": "TESTS",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 4,
            "queueId": 0,
            "sysFlag": 0,
            "bornTimestamp": time.time_ns() // 1_000_000,
            "flag": 0,
            "properties": properties,
            "reconsumeTimes": 0,
            "unitMode": "false",
            "batch": "false",
        }
        self._ask(_SEND, header, body)

    def stored(self, topic: str, queue: int) -> list[Stored]:
        """All messages of a queue, oldest first."""
        self._wait_until_dispatched()
        _, header, _ = self._ask(_LAST_OFFSET, {"topic": topic, "queueId": queue})
        end = int(header["offset"])
        found: list[Stored] = []
        while not found or found[-1].offset + 1 < end:
            some = self._pull(topic, queue, found[-1].offset + 1 if found else 0)
            if not some:
                break
            found += some
        return found

    def _wait_until_dispatched(self, timeout: float = 60) -> None:
        """Wait until the queues have what is in the log: a thread of the broker's copies it there, and lags
        behind if the machine is busy."""
        deadline = time.monotonic() + timeout
        while True:
            _, _, content = self._ask(_RUNTIME, {})
            if int(json.loads(content)["table"]["dispatchBehindBytes"]) <= 0:
                return
            if time.monotonic() > deadline:
                raise TimeoutError("the broker does not dispatch what it has stored")
            time.sleep(0.01)

    def _wait_until_known(self, topic: str, timeout: float = 60) -> None:
        """Wait until the name server knows the topic: the broker registers it a moment later. A proxy that is
        asked too early remembers for a while that the topic does not exist."""
        _, _, content = self._ask(_CONFIGURATION, {})
        settings = dict(line.split("=", 1) for line in content.decode().splitlines() if "=" in line)
        names = Remoting(settings["namesrvAddr"])
        deadline = time.monotonic() + timeout
        while names._ask(_ROUTE, {"topic": topic}, allowed={_NO_ROUTE})[0] == _NO_ROUTE:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the name server does not know {topic}")
            time.sleep(0.01)

    def _pull(self, topic: str, queue: int, offset: int) -> list[Stored]:
        header = {
            "consumerGroup": "TOOLS_CONSUMER",
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": _AT_ONCE,
            "sysFlag": 4,  # with a subscription, which follows
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        code, _, body = self._ask(_PULL, header, allowed=_NOTHING_THERE)
        return [] if code in _NOTHING_THERE else list(_messages(body))

    def _ask(
        self,
        code: int,
        header: Mapping[str, Any],
        body: bytes = b"",
        allowed: Collection[int] = (),
    ) -> tuple[int, dict[str, str], bytes]:
        host, _, port = self._address.rpartition(":")
        head = json.dumps(
            {
                "code": code,
                "extFields": {name: str(value) for name, value in header.items()},
                "flag": 0,
                "language": "PYTHON",
                "opaque": 0,
                "serializeTypeCurrentRPC": "JSON",
                "version": 495,
            }
        ).encode()
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body)
            with connection.makefile("rb") as stream:
                length, head_length = struct.unpack(">ii", stream.read(8))
                head_length &= 0xFFFFFF  # the highest byte is the encoding
                answer = json.loads(stream.read(head_length))
                content = stream.read(length - 4 - head_length)
        if answer["code"] not in {0, *allowed}:
            raise RuntimeError(
                f"RocketMQ answers request {code} with {answer['code']}: {answer.get('remark')}"
            )
        return answer["code"], answer.get("extFields") or {}, content


def _messages(data: bytes) -> Iterator[Stored]:
    """Messages in the form of the broker's log, one after another."""
    while data:
        size, _, _, queue, _, offset = struct.unpack_from(">iiiiiq", data)
        system_flag = struct.unpack_from(">i", data, 36)[0]
        # Then the time and host of the producer and of the broker, whose addresses may be IPv6.
        place = 40 + 8 + (20 if system_flag & 0x10 else 8) + 8 + (20 if system_flag & 0x20 else 8) + 4 + 8
        length = struct.unpack_from(">i", data, place)[0]
        body = data[place + 4 : place + 4 + length]
        place += 4 + length
        place += 1 + data[place]  # the topic
        length = struct.unpack_from(">h", data, place)[0]
        text = data[place + 2 : place + 2 + length].decode()
        pairs = (each.partition(_BETWEEN_NAME_AND_VALUE) for each in text.split(_BETWEEN_PROPERTIES) if each)
        yield Stored(queue, offset, body, {name: value for name, _, value in pairs})
        data = data[size:]
