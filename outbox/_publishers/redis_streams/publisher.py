"""Publish an outbox's messages to Redis Streams, through redis-py (extra `redis`)."""

import logging
from collections.abc import Generator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from inbox_outbox_base.calls import clock
from inbox_outbox_base.checks import options, outbox_options
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.errors.outbox import InvalidOption, UnsafeBroker
from inbox_outbox_base.words.outgoing import Envelope, Outcome
from outbox._publishers.publisher import check_lease, topic_names
from outbox._publishers.sends_in_threads import PublisherInThreads

with brought_by("redis"):
    import redis

    from inbox_outbox_base.brokers.redis_streams import address
    from inbox_outbox_base.brokers.redis_streams.client import FAILURES, is_login_refused, new_client, text_of

    from .sending import RedisSending

_log = logging.getLogger("outbox.redis_streams")
_SHARE_OF_A_STEP = 0.2
"""The part of the time limit in which a connection is made; a transaction has three."""
_SHARE_FOR_STARTING = 0.35
"""The part of the time limit in which transactions begin."""
_LARGEST = 16_000_000
_SETTINGS = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")


class RedisStreamsPublisher:
    """A `Publisher` that says `Accepted` once Redis has added the entry.

    The topic is the stream, which must exist. Redis's settings decide how safe an entry is: with `appendonly
    yes` and `appendfsync always` it is on disk. A replica that takes over may lack the last ones.

    Messages are added in the order in which they were published, many in one transaction (MULTI). Each is
    sent once, without the client's own retries, which hide whether the first command arrived. A message may
    be added twice, with the same id: after an `Unknown` outcome, or when a relay dies before it has recorded
    the answer.

    Thread-safe. All sends share their connections; a forked process opens its own.

    Args:
        url: redis://user:password@host:6379/0, or rediss:// with TLS, with ?ssl_ca_certs= if its certificate
            needs that.
        topics: the streams to check before the first send.
        largest: the most bytes in an entry, its key and headers included.
        durable: False: take a server that may lose what it has confirmed (`appendonly no`), or evicts streams
            (`maxmemory-policy allkeys-*`), with a warning.
        timeout: the longest time that `send` takes, in seconds or as `timedelta`; shorter than the relay's
            lease.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    ordered = True

    def __init__(
        self,
        url: str,
        *,
        topics: Sequence[str] = (),
        largest: int = _LARGEST,
        durable: bool = True,
        timeout: float | timedelta = 10,
    ) -> None:
        self._address = address.parse(url, error=InvalidOption)
        self._topics = topic_names(topics)
        self._largest = options.count("largest", largest, error=InvalidOption)
        self._durable = outbox_options.flag("durable", durable)
        self.timeout = outbox_options.seconds("timeout", timeout, positive=True)
        self._client: Any = new_client(self._address, self.timeout * _SHARE_OF_A_STEP)
        self._sendings: set[RedisSending] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._address)!r})"

    def check(self, lease: float) -> None:
        """Check that the settings keep the guarantee within a lease of this many seconds.

        A relay starts even if Redis does not answer: then only the settings are checked. So it does if the
        server does not let this user see its configuration.

        Raises:
            UnsafeBroker: `timeout` is not shorter than the lease, Redis refuses the login, one of `topics` is
                no stream, or, with `durable`, a setting of Redis may lose messages; it names the setting, and
                no secret.
        """
        check_lease(self.timeout, lease)
        try:
            self._check_streams()
            found: dict[str, str] = {}
            for name in _SETTINGS:  # one by one: Redis 6 takes no list
                found |= self._client.config_get(name)
        except redis.ResponseError as error:
            _log.warning("%r: its settings are not checked: %s", self, text_of(error))
        except FAILURES as error:
            if is_login_refused(error):
                raise UnsafeBroker(
                    f"url={str(self._address)!r}: Redis refuses the login: {text_of(error)}"
                ) from None
            _log.warning("%r: not checked, because Redis cannot be reached: %s", self, text_of(error))
        else:
            self._check_settings(found)

    def _check_streams(self) -> None:
        for topic in self._topics:
            kind = self._client.type(topic).decode()
            if kind != "stream":
                why = "there is no such stream" if kind == "none" else f"it is a {kind}, not a stream"
                raise UnsafeBroker(f"topics={topic!r}: {why}")

    def _check_settings(self, found: Mapping[str, str]) -> None:
        risks = []
        if found.get("appendonly", "yes") != "yes":
            risks.append("appendonly=no: Redis loses what it has confirmed when it is killed")
        evicts = found.get("maxmemory-policy", "").startswith("allkeys")
        if evicts and found.get("maxmemory", "0") != "0":
            risks.append(
                f"maxmemory-policy={found['maxmemory-policy']}: Redis deletes whole streams when it is full"
            )
        if risks and self._durable:
            raise UnsafeBroker(f"{risks[0]}; durable=False takes this server all the same")
        if found.get("appendfsync", "always") != "always":
            risks.append(
                f"appendfsync={found['appendfsync']}: a crash of the machine can lose the last second"
            )
        for risk in risks:
            _log.warning("%r: %s", self, risk)

    def send(self, batch: Sequence[Envelope]) -> Generator[tuple[int, Outcome]]:
        """Send a batch of one topic, and yield each message's place and outcome as the answers arrive.
        Redis's errors are outcomes, not exceptions.

        `Refused`: larger than `largest`. `Unavailable`: Redis does not answer, no such stream, no right, or
        the server is full, loading, or a replica. `Unknown`: sent, but the connection broke or the time ran
        out before the answer.
        """
        if not batch:
            return
        last_start = clock.now() + self.timeout * _SHARE_FOR_STARTING
        sending = RedisSending(self._client, batch, largest=self._largest, last_start=last_start)
        self._sendings.add(sending)
        try:
            yield from sending.answers()
        finally:
            self._sendings.discard(sending)

    def begin_no_more(self) -> None:
        """Let running sends begin no further transactions; the outcome of their messages is `Unavailable`."""
        for sending in tuple(self._sendings):
            sending.begins = False

    def close(self) -> None:
        """Close the connections; another `send` opens new ones."""
        self._client.close()


class AsyncRedisStreamsPublisher(PublisherInThreads[RedisStreamsPublisher]):
    """`RedisStreamsPublisher` for an `AsyncRelay`: the same arguments and promises, its sends in threads.

    A cancelled send ends before the cancellation is raised: none of its messages is sent after that.
    """

    ordered = True

    def __init__(
        self,
        url: str,
        *,
        topics: Sequence[str] = (),
        largest: int = _LARGEST,
        durable: bool = True,
        timeout: float | timedelta = 10,
    ) -> None:
        made = RedisStreamsPublisher(url, topics=topics, largest=largest, durable=durable, timeout=timeout)
        super().__init__(made, "outbox redis")

    def begin_no_more(self) -> None:
        """As `RedisStreamsPublisher.begin_no_more`."""
        self._publisher.begin_no_more()
