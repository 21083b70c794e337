"""A connection to publish on."""

from collections.abc import Callable
from itertools import count

from inbox_outbox_base.brokers.nats.address import NatsAddress
from inbox_outbox_base.brokers.nats.client import Client, Msg, NoRight, close, connect

_DENIED = "permissions violation for "


class NatsLink:
    """A connection, and the subject on which JetStream answers; used by one `send` at a time.

    Sends do not share a connection, so that one which hangs or breaks leaves only its own messages in doubt.
    """

    def __init__(self, address: NatsAddress) -> None:
        self._address = address
        self._client: Client | None = None
        self._subject = ""
        self._numbers = count()
        self._complaints = list[str]()
        self._on_answer: Callable[[str, Msg], None] = _ignore
        self._on_news: Callable[[], None] = _nothing

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return self._client is not None and bool(self._client.is_connected)

    @property
    def denied(self) -> int:
        """How many publishes the server has not allowed since the last `listen`; it answers each."""
        return len(self._complaints)

    @property
    def complaint(self) -> str:
        """What the server said about the first of them."""
        return self._complaints[0] if self._complaints else ""

    async def ready(self, patience: float) -> Client:
        """The client. It connects first.

        Raises:
            NoRight: answers cannot come.
            Exception: one of the client's `FAILURES`.
        """
        if self._client is None:
            client = await connect(
                self._address,
                patience,
                on_error=self._note,
                on_end=self._told,
                name="outbox",
            )
            self._client = client
            prefix = client.new_inbox()
            await client.subscribe(f"{prefix}.*", cb=self._answered)
            await client.flush(timeout=patience)  # type: ignore[arg-type]
            if self._complaints:
                raise NoRight(self.complaint)
            self._subject = prefix + "."
        return self._client

    def listen(self, on_answer: Callable[[str, Msg], None], on_news: Callable[[], None]) -> None:
        """Who is told of answers, by their subject, and of what the server says about the connection."""
        self._complaints.clear()
        self._on_answer, self._on_news = on_answer, on_news

    def next_subject(self) -> str:
        """A subject for one answer."""
        return f"{self._subject}{next(self._numbers)}"

    async def close(self) -> None:
        """Close the connection, properly unless it hangs."""
        self.listen(_ignore, _nothing)
        if self._client is not None:
            await close(self._client)

    async def _answered(self, message: Msg) -> None:
        self._on_answer(message.subject, message)

    def _note(self, complaint: str) -> None:
        if _DENIED in complaint.lower():
            self._complaints.append(complaint)
        self._on_news()

    def _told(self) -> None:
        self._on_news()


def _ignore(_: str, __: Msg) -> None:
    """Nobody waits for this answer any more."""


def _nothing() -> None:
    """Nobody waits for news."""
