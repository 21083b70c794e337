"""The relay for synchronous code."""

import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any

from sqlalchemy import Engine

from inbox_outbox_base.errors.outbox import InvalidOption
from inbox_outbox_base.words.outgoing import Envelope
from outbox._publishers.publisher import Publisher
from outbox._relaying.sending.flight import Flight
from outbox._waking.listening_thread import ListeningThread, ThreadWakeUp

from .loop import RelayLoop


class Relay(RelayLoop[Engine, Publisher]):
    """Sends committed messages to a broker: each at least once, with the same id each time, and in order for
    each key.

    Each topic has its own lane: a topic that is slow or fails delays no other. A message stays in the outbox
    until the publisher has accepted it. A lease in the database gives each bucket of keys to one relay at a
    time; several relays share the buckets, and take over those of a lost relay. The publisher's outcome
    decides what happens to a message:

    - `Accepted`: it is deleted.
    - `Refused`: it becomes a dead letter.
    - `Unavailable`: it is retried after the backoff, forever unless `give_up_after` is set. Its key waits.
    - `Unknown`: the same, but after `max_attempts` such sends it becomes a dead letter. A send during which
      the relay dies counts as one.

    Args:
        engine: the Engine of the outbox's database.
        publisher: the `Publisher` that sends the messages.
        name: the name that operators see; None: host and process id.
        schema: the PostgreSQL schema of the tables.
        buckets: how many buckets the database must have; None accepts any number.
        batch: the largest number of messages in a batch of a topic; reduced while batches take long.
        lease: how long this relay owns its buckets without a sign of life, in seconds or as `timedelta`.
            After a relay dies, its messages may wait this long.
        poll: how often to look for messages without being woken, in seconds or as `timedelta`.
        max_attempts: sends without an answer after which a message becomes a dead letter.
        backoff: the delays between sends of a message.
        after_dead: "continue" lets the messages behind a dead letter go on; "hold" blocks its key until an
            operator has decided.
        keep_sent: how long to keep records of the messages that it sends, for the audit and for ids chosen by
            producers; None keeps none. Each record has its own time: any relay deletes what is over.
        listen_url: PostgreSQL's own address, needed if the engine connects through a pooler in transaction
            mode: other processes can wake a relay only on a direct connection.
        give_up_after: seconds or `timedelta` from a message's first failed send until it becomes a dead
            letter, with the last reason, if it is still not accepted; None: never.

    Raises:
        InvalidOption: an argument is invalid.
        UnsafeBroker: a send of the publisher could outlast the lease.
        UnsupportedDatabase: not PostgreSQL, MySQL, MariaDB or SQLite.
    """

    _is_async = False

    def _own(self, engine: Engine) -> Engine:
        if not isinstance(engine, Engine) or engine.dialect.is_async:
            raise InvalidOption(f"engine={type(engine).__name__}: expected an Engine; see AsyncRelay")
        self._wake_up = ThreadWakeUp()
        return engine

    def run_once(self) -> int:
        """Send the messages that are in the outbox now, and return how many were accepted. Several processes
        may call this at the same time.

        Ends when no message can be sent now, or when the broker accepts none. Leaves out buckets that another
        relay owns.

        Raises:
            InvalidOption: this relay is running, in another thread or before a fork.
            UnsafeBroker: the publisher's settings break the guarantee.
            WrongBucketCount: the database has another number of buckets.
            TablesMissing: the tables have not been created.
        """
        with self._alone(), self._beating():
            return self._run_once()

    def run(self) -> None:
        """Relay messages until `stop` is called; then let running sends end, and give up the buckets. In the
        main thread, SIGTERM and SIGINT call `stop`.

        Keeps running while the database or the broker is unavailable. Raises the errors of `run_once`.
        """
        self._check()
        is_main = threading.current_thread() is threading.main_thread()
        stopping = self.stopping_on_sigterm(signal.SIGINT) if is_main else nullcontext()
        schema = self._settings.tables.message.schema
        listening = ListeningThread(self._engine, schema, self._wake_up, self._listen_connector)
        with self._alone(), stopping, listening, self._beating():
            self._run()

    @contextmanager
    def _beating(self) -> Iterator[None]:
        over = threading.Event()
        threading.Thread(target=self._lease.beat, args=(over.wait,), name="outbox lease", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _start(self, flight: Flight) -> None:
        if self._settings.concurrent:
            run = partial(copy_context().run, self._fly, flight)
            threading.Thread(target=run, name=f"outbox send {flight.topic}", daemon=True).start()
        else:
            self._fly(flight)

    def _abandon(self) -> None:
        pass  # a thread cannot be interrupted

    def _hand_over(self, batch: list[Envelope]) -> Iterable[Any]:
        answers: Iterable[Any] = self._publisher.send(batch)
        return answers

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)
