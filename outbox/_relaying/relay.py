"""The relay, for synchronous code."""

import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

from sqlalchemy import Engine

from inbox_outbox_base.brokers.publishing import Publisher
from inbox_outbox_base.errors.outbox import InvalidOption
from inbox_outbox_base.words.outgoing import Envelope, Outcome
from outbox._waking.ears import Ears, ThreadBell

from .loop import RelayLoop


class Relay(RelayLoop[Engine, Publisher]):
    """Takes committed messages to a broker: each at least once, with the same id in every send, and those of
    one key in their order.

    A message stays in the outbox until the publisher has accepted it. Every bucket of keys is one relay's at
    a time, by a lease in the database; several relays share the buckets, and take over those of a relay that
    is lost. What the publisher says of a message decides:

    - `Accepted`: it is forgotten.
    - `Refused`: it becomes a dead letter.
    - `Unavailable`: it is sent again after the backoff, without end unless there is `give_up_after`. Its key
      waits.
    - `Unknown`: the same, but after `max_attempts` such sends it becomes a dead letter, too. A send during
      which the relay dies counts as one.

    Args:
        engine: where the outbox is; an Engine.
        publisher: what takes the messages; a `Publisher`.
        name: what operators see; None is host and process.
        schema: the PostgreSQL schema of the tables.
        buckets: how many buckets the database has to have; None takes it as it is.
        batch: messages in a batch, at most; fewer while batches take long.
        lease: how long this relay owns its buckets without a sign of life, in seconds or as `timedelta`; so
            long messages may wait after a relay has died.
        poll: how often to look for messages without being woken, in seconds or as `timedelta`.
        max_attempts: sends without an answer after which a message is dead.
        backoff: when a message is sent again.
        after_dead: "continue" lets the messages behind a dead letter go on; "hold" keeps its key waiting
            until an operator has decided.
        keep_sent: how long to keep a record of what was sent, for the audit and for ids that producers give
            themselves; None keeps none.
        listen_url: PostgreSQL's own address, where the engine's is that of a pooler in transaction mode: only
            there can a relay be woken by other processes.
        give_up_after: how long after its first failed send a message that is still not accepted becomes a
            dead letter, with the last reason, in seconds or as `timedelta`; None: never.

    Raises:
        InvalidOption: an argument cannot be used.
        UnsafeBroker: a send of the publisher could outlast the lease.
        UnsupportedDatabase: not PostgreSQL, MySQL, MariaDB or SQLite.
    """

    _is_async = False

    def _own(self, engine: Engine) -> Engine:
        if not isinstance(engine, Engine) or engine.dialect.is_async:
            raise InvalidOption(f"engine={type(engine).__name__}: expected an Engine; see AsyncRelay")
        self._bell = self._ear = ThreadBell()
        return engine

    def run_once(self) -> int:
        """Relay what is there, and return how many messages were; may be called in several processes at once.

        Ends when nothing is left that may leave now, or when the broker takes nothing. Buckets that another
        relay owns are left to it.

        Raises:
            UnsafeBroker: the publisher's settings cannot keep the promise.
            WrongBucketCount: the database has another number of buckets.
            TablesMissing: the tables have not been made.
        """
        with self._beating():
            return self._run_once()

    def run(self) -> None:
        """Relay messages until `stop` is called; then finish the batch that is on its way, and give up the
        buckets. In the main thread, SIGTERM and SIGINT call `stop`.

        Goes on while the database is away, and while the broker is. Raises as `run_once`.
        """
        self._check()
        is_main = threading.current_thread() is threading.main_thread()
        stopping = self.stopping_on_sigterm(signal.SIGINT) if is_main else nullcontext()
        ears = Ears(self._engine, self._settings.tables.message.schema, self._ear, self._line)
        with stopping, ears, self._beating():
            self._run()

    @contextmanager
    def _beating(self) -> Iterator[None]:
        over = threading.Event()
        threading.Thread(target=self._beat, args=(over.wait,), name="outbox lease", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _hand_over(self, batch: list[Envelope]) -> Iterable[Outcome]:
        outcomes: Iterable[Outcome] = self._publisher.send(batch)
        return outcomes

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)
