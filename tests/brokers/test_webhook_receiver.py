"""What a receiver of webhooks answers, and when."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import create_engine
from starlette.routing import Route

from examples.embedded_postgres import free_port
from inbox import Decision, Delivery, Outcome, Verdict
from inbox.errors import GiveUp, InvalidOption
from inbox.webhook import WebhookReceiver
from tests.support import accounts
from tests.support.brokers.consumers import SOON, payloads, taking
from tests.support.brokers.webhook_books import by_status, by_status_async, once, once_async
from tests.support.brokers.webhook_endpoint import envelope
from tests.support.brokers.webhook_posting import PATH, of_outbox, post, posted, signed, statuses
from tests.support.brokers.webhook_program import SECRET
from tests.support.database import Database

OTHER = "whsec_YW5vdGhlciBzZWNyZXQgdGhhdCBpcyBsb25nIGVub3VnaA=="


def receiver(handler: Any, secrets: Any = SECRET, **options: Any) -> WebhookReceiver:
    """One that says soon when to send again."""
    return WebhookReceiver(handler, secrets, **{"backoff": SOON, **options})


@pytest.mark.parametrize("books", [once, by_status, once_async, by_status_async])
def test_taken_once(books: Any, postgres: Database) -> None:
    """An answer of success means that it has committed; a duplicate gets the same one, and a failed message
    comes again. So it is with handlers of both modes, synchronous or not."""
    failures = [b"two"]

    def fail(message: Delivery) -> None:
        if message.payload in failures:
            failures.remove(message.payload)
            raise ValueError("s3cr3t")

    engine = accounts.make(postgres.engine(), ["one", "two", "other"])

    async def run() -> None:
        own: Any = postgres.async_engine() if "async" in books.__name__ else engine
        app = receiver(books(own, fail))
        one, two = of_outbox(envelope(b"one", "k")), of_outbox(envelope(b"two", "k"))
        for _ in range(2):
            assert (await posted(app, one))[0].status_code == 204
            assert accounts.totals(engine) == {"one": 1, "two": 0, "other": 0}
        (failed,) = await posted(app, two)
        assert (failed.status_code, failed.headers["retry-after"], failed.text) == (500, "1", "it has failed")
        await asyncio.sleep(0.2)  # the record's delay
        assert (await posted(app, two))[0].status_code == 204
        changed = [of_outbox(replace(envelope(text), id="7")) for text in (b"other", b"one")]
        assert [(await posted(app, each))[0].status_code for each in changed] == [204, 422]
        if own is not engine:
            await own.dispose()

    asyncio.run(run())
    assert accounts.totals(engine) == {"one": 1, "two": 1, "other": 1}


def test_the_same_message_at_the_same_time(postgres: Database) -> None:
    """It is taken once, whichever request is first; another one that has its key waits for its turn."""
    engine = accounts.make(postgres.engine(), ["x", "y"])
    app = receiver(once(engine, lambda _: time.sleep(0.1)))
    message = of_outbox(envelope(b"x", "k"))
    assert {each.status_code for each in post(app, *[message] * 5, of_outbox(envelope(b"y", "k")))} == {204}
    assert accounts.totals(engine) == {"x": 1, "y": 1}


@pytest.mark.parametrize(
    ("outcome", "options", "status", "text"),
    [
        (Outcome(Verdict.NEW), {}, 204, ""),
        (Outcome(Verdict.DUPLICATE), {}, 204, ""),
        (Outcome(Verdict.IN_FLIGHT), {}, 503, "not now"),
        (Outcome(Verdict.IN_FLIGHT, retry_after=90.5), {}, 503, "not now"),
        (Outcome(Verdict.MISMATCH), {}, 422, "mismatch"),
        (Outcome(Verdict.TOO_OLD), {}, 422, "too_old"),
        (Outcome(Verdict.TOO_OLD), {"too_old": "ack"}, 204, ""),
        (Outcome(Verdict.DEAD), {}, 422, "dead"),
        (Outcome(Verdict.HALTED), {}, 422, "halted"),
        (Outcome(Verdict.NEW, error=GiveUp("s3cr3t")), {}, 500, "it has failed"),
        (Outcome(Verdict.NEW, error=ValueError("s3cr3t")), {}, 500, "it has failed"),
        (None, {}, 503, "it cannot be handled"),
    ],
)
def test_what_a_verdict_means(outcome: Any, options: dict[str, Any], status: int, text: str) -> None:
    """Each has its status. No answer says more than the verdict: the reason may not be for the sender."""
    (answer,) = post(receiver(lambda _: outcome, **options), signed(b"{}"))
    assert (answer.status_code, answer.text) == (status, text)
    delays = {"": None, "not now": "1" if outcome and outcome.retry_after is None else "91"}
    assert answer.headers.get("retry-after") == delays.get(text, "1" if status in (500, 503) else None)


def test_what_a_handler_raises() -> None:
    """What gives the message up is 422, its other errors are 500. An asynchronous handler that a synchronous
    one was expected to be is nobody's fault but the program's."""

    def give_up(_: Delivery) -> Outcome:
        raise GiveUp("s3cr3t")

    def fail(_: Delivery) -> Outcome:
        raise ValueError("s3cr3t")

    async def fail_later(_: Delivery) -> Outcome:
        await asyncio.sleep(0)
        raise ValueError("s3cr3t")

    expected = [(give_up, 422, "dead"), (fail, 500, "it has failed"), (fail_later, 500, "it has failed")]
    for handle, status, text in expected:
        (answer,) = post(receiver(handle), signed(b"{}"))
        assert (answer.status_code, answer.text) == (status, text)


def test_the_database_is_away() -> None:
    """The message is not to blame: 503, also in status-table mode."""
    engine = create_engine(f"postgresql+psycopg://me@127.0.0.1:{free_port()}/none")
    for books in (once, by_status):
        (answer,) = post(receiver(books(engine)), signed(b"{}"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), books
    engine.dispose()


def test_dead_letters_that_are_stored() -> None:
    """With `dead_letter=`, what no delivery can change is stored here, and then taken; if that fails, it is
    sent again."""
    stored: list[tuple[str, str]] = []

    def store(message: Delivery, decision: Decision) -> None:
        if message.id == "msg_2":
            raise OSError
        stored.append((message.id, decision.reason))

    app = receiver(lambda _: Outcome(Verdict.MISMATCH), dead_letter=store)
    assert statuses(app, signed(b"{}"), signed(b"{}", "msg_2")) == [204, 503]
    assert stored == [("msg_1", "mismatch")]


def test_messages_of_an_outbox() -> None:
    """They arrive as they were published, whatever they contain."""
    seen: list[Delivery] = []
    created = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    given = [
        replace(envelope(bytes(range(256)), "Ärger 日本\n", a="é\r\n", ce_type="t"), created_at=created),
        replace(envelope(b"", ""), id="order.42 paid?", attempt=7, content_type="text/日本"),
    ]
    assert statuses(receiver(taking(seen.append)), *map(of_outbox, given)) == [204, 204]
    for message, sent in zip(seen, given, strict=True):
        assert (message.id, message.key, message.payload) == (sent.id, sent.key, sent.payload)
        assert (message.headers, message.content_type) == (sent.headers, sent.content_type)
        assert (message.attempt, message.created_at) == (sent.attempt, sent.created_at)
        assert (message.topic, message.place) == ("orders", "/hooks")


def test_messages_of_others() -> None:
    """Whoever signs with the specification's library is understood. The id is the one that is signed; a
    CloudEvent's attributes have the outbox's names. Headers of HTTP and secrets stay here."""
    seen: list[Delivery] = []
    body, headers = signed('{"a": "日本"}'.encode(), "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W")
    more = {
        "ce-specversion": "1.0",
        "ce-id": "7",
        "ce-subject": "%C3%A9%20%22",
        "X-Colour": "blue",
        "Authorization": "Bearer s3cr3t",
        "Cookie": "s3cr3t",
        "outbox": '{"id": "1"}',
    }
    assert statuses(receiver(taking(seen.append)), (body, {**headers, **more})) == [204]
    (message,) = seen
    assert (message.id, message.topic, message.key) == ("msg_2KWPBgLlAfxdpx2AI54pPJ85f4W", "/hooks", None)
    assert (message.payload, message.content_type) == (body, "application/json")
    assert (message.attempt, message.created_at) == (1, None)
    assert message.headers["ce_subject"] == 'é "'
    assert (message.headers["x-colour"], message.headers["ce_id"]) == ("blue", "7")
    assert "s3cr3t" not in str(message)
    assert "outbox" not in message.headers


def test_in_an_application_of_fastapi() -> None:
    """It is a route like any other."""
    app = FastAPI()
    app.router.routes.append(Route(PATH, receiver(payloads([]))))
    assert statuses(app, signed(b"{}"), (b"{}", {})) == [204, 401]


def test_secrets_that_are_replaced() -> None:
    """Either side may be first: one signature of one known secret is enough."""
    new = [OTHER, SECRET]
    for sender, here in ((SECRET, new), (OTHER, new), (new, SECRET), (new, OTHER), (new, new)):
        assert statuses(receiver(payloads([]), here), of_outbox(envelope(), sender)) == [204]
    assert statuses(receiver(payloads([]), OTHER), of_outbox(envelope(), SECRET)) == [401]


FORGED: dict[str, Callable[[bytes, dict[str, str]], tuple[bytes, dict[str, str]]]] = {
    "another body": lambda body, headers: (body + b" ", headers),
    "another id": lambda body, headers: (body, {**headers, "webhook-id": "msg_2"}),
    "another time": lambda body, headers: (
        body,
        {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)},
    ),
    "no signature": lambda body, headers: (body, {**headers, "webhook-signature": ""}),
    "an empty one": lambda body, headers: (body, {**headers, "webhook-signature": "v1,"}),
    "another version": lambda body, headers: (
        body,
        {**headers, "webhook-signature": headers["webhook-signature"].replace("v1,", "v1a,")},
    ),
    "a part of it": lambda body, headers: (
        body,
        {**headers, "webhook-signature": headers["webhook-signature"][:-8]},
    ),
    "no Base64": lambda body, headers: (body, {**headers, "webhook-signature": "v1,\xe9? v1 , v1,=,="}),
    "no id": lambda body, headers: (body, {**headers, "webhook-id": ""}),
    "a time in words": lambda body, headers: (body, {**headers, "webhook-timestamp": "now"}),
    "a long time": lambda body, headers: (body, {**headers, "webhook-timestamp": "1" * 5_000}),
    "a time with a sign": lambda body, headers: (
        body,
        {**headers, "webhook-timestamp": "+" + headers["webhook-timestamp"]},
    ),
}


@pytest.mark.parametrize("how", FORGED)
def test_forged_requests(how: str) -> None:
    """Nothing that was not signed so reaches the handler."""
    seen: list[bytes] = []
    app = receiver(payloads(seen))
    body, headers = signed(b"{}")
    forged = FORGED[how](body, dict(headers))
    assert statuses(app, forged, (body, headers)) == [401, 204]
    assert seen == [b"{}"]


def test_a_request_of_an_outbox_that_is_changed() -> None:
    """Who has seen a request cannot send it with another key or without one: otherwise an inbox that knows
    messages by their key would take it twice."""
    seen: list[bytes] = []
    app = receiver(payloads(seen))
    body, headers = of_outbox(envelope(b"x", "order-42"))
    other_headers = of_outbox(envelope(b"x", "order-43"))[1]
    without = {name: value for name, value in headers.items() if not name.startswith("outbox")}
    theirs = {name: value for name, value in other_headers.items() if name.startswith("outbox")}
    only_signature = {**without, "outbox-signature": headers["outbox-signature"]}
    changed = {**headers, "outbox": headers["outbox"].replace("order-42", "order-43")}
    by_body = {**changed, "outbox-signature": headers["webhook-signature"]}
    forged = [without, {**headers, **theirs}, only_signature, changed, by_body]
    assert statuses(app, *((body, each) for each in forged)) == [401] * 5
    assert seen == []


def test_two_requests_with_one_signature() -> None:
    """`a` at 1 with the body `2.x` is signed as `a.1` at 2 with the body `x` is: an id has no full stop."""
    now = int(time.time())
    body, headers = signed(f"{now}.x".encode(), "a")
    moved = {**headers, "webhook-id": f"a.{headers['webhook-timestamp']}", "webhook-timestamp": str(now)}
    assert statuses(receiver(payloads([])), (b"x", moved), (body, headers)) == [401, 204]


@pytest.mark.parametrize(("age", "status"), [(290, 204), (-290, 204), (310, 401), (-310, 401)])
def test_the_age_of_a_request(age: float, status: int) -> None:
    """It may be five minutes old, or as much ahead."""
    app = receiver(payloads([]))
    assert statuses(app, signed(b"{}", age=age), of_outbox(envelope(), age=age)) == [status, status]


def test_too_large() -> None:
    """A body above the limit is not read to its end, whether its length is announced or not."""
    bodies = list[bytes]()
    app, seen = receiver(payloads(bodies), largest=1_000), 0
    assert statuses(app, signed(b"x" * 1_000), signed(b"x" * 1_001)) == [204, 413]

    async def answer(headers: dict[str, str]) -> int:
        return int((await asked(app, headers, chunk))[0]["status"])

    async def chunk() -> dict[str, Any]:
        nonlocal seen
        seen += 1
        return {"type": "http.request", "body": b"x" * 600, "more_body": True}

    headers = dict(signed(b"{}")[1])
    assert asyncio.run(answer(headers)) == 413
    assert seen == 2
    assert asyncio.run(answer({**headers, "content-length": "1001"})) == 413
    assert asyncio.run(answer({**headers, "webhook-timestamp": "1"})) == 401
    assert seen == 2, "the headers are enough"
    assert bodies == [b"x" * 1_000]


async def asked(app: Any, headers: dict[str, str], receive: Any, method: str = "POST") -> list[Any]:
    """What it sends for a request as ASGI describes it."""
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answers: list[Any] = []

    async def send(event: Any) -> None:
        answers.append(event)

    await app({"type": "http", "method": method, "path": "/", "headers": pairs}, receive, send)
    return answers


def test_odd_requests() -> None:
    """What is no request for it gets an answer, and none ends it."""
    app = receiver(payloads([]), timeout=0.1)

    async def nothing() -> Any:
        await asyncio.sleep(30)

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def run() -> None:
        good = dict(signed(b"{}")[1])
        assert (await asked(app, good, nothing))[0]["status"] == 408
        assert (await asked(app, good, gone))[0]["status"] == 400
        assert (await asked(app, good, gone, "GET"))[0]["status"] == 405
        assert (await asked(app, {**good, "content-encoding": "gzip"}, gone))[0]["status"] == 415
        assert (await asked(app, {**good, "Webhook-Id": "again"}, gone))[0]["status"] == 401
        assert (await asked(app, {}, gone))[0]["status"] == 401
        sent: list[Any] = []

        async def send(event: Any) -> None:
            sent.append(event["type"])

        await app({"type": "websocket"}, gone, send)
        assert sent == ["websocket.close"]

    asyncio.run(run())


def test_as_many_as_may_wait() -> None:
    """More requests than `waiting` get 503; so many run at the same time as `concurrency` says, in threads,
    and the event loop goes on."""
    release, running, most = threading.Event(), 0, 0
    lock = threading.Lock()

    def hold(_: Delivery) -> Outcome:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        release.wait(30)
        with lock:
            running -= 1
        return Outcome(Verdict.NEW)

    async def run() -> list[int]:
        app = receiver(hold, waiting=5, concurrency=3)
        requests = [asyncio.create_task(posted(app, signed(b"{}", f"msg_{n}"))) for n in range(20)]
        while sum(each.done() for each in requests) < 15:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        release.set()
        return [(await each)[0].status_code for each in requests]

    assert sorted(asyncio.run(run())) == [204] * 5 + [503] * 15
    assert most == 3


def test_bodies_that_arrive_together() -> None:
    """Requests whose bodies are still being read do not count as waiting, but not more than that are held
    afterwards."""

    async def hold(_: Delivery) -> Outcome:
        await asyncio.sleep(0.1)
        return Outcome(Verdict.NEW)

    async def run() -> list[int]:
        app, arrived = receiver(hold, waiting=2), asyncio.Event()

        async def body() -> Any:
            await arrived.wait()
            return {"type": "http.request", "body": b"{}"}

        headers = [dict(signed(b"{}", f"msg_{number}")[1]) for number in range(5)]
        requests = [asyncio.create_task(asked(app, each, body)) for each in headers]
        await asyncio.sleep(0.05)
        arrived.set()
        return [(await each)[0]["status"] for each in requests]

    assert sorted(asyncio.run(run())) == [204] * 2 + [503] * 3


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stop(is_async: bool) -> None:
    """When the server shuts down, running messages finish within `grace`, those that wait are sent again
    later, and so are new ones."""
    release, begun = threading.Event(), threading.Event()

    def hold(_: Delivery) -> Outcome:
        begun.set()
        release.wait(30)
        return Outcome(Verdict.NEW)

    async def hold_async(_: Delivery) -> Outcome:
        begun.set()
        while not release.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return Outcome(Verdict.NEW)

    async def run() -> None:
        app = receiver(hold_async if is_async else hold, concurrency=1)
        events: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        said: list[str] = []

        async def send(event: Any) -> None:
            said.append(event["type"])

        living = asyncio.create_task(app({"type": "lifespan"}, events.get, send))
        events.put_nowait({"type": "lifespan.startup"})
        first = asyncio.create_task(posted(app, signed(b"{}", "a")))
        while not begun.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        second = asyncio.create_task(posted(app, signed(b"{}", "b")))
        await asyncio.sleep(0.05)
        events.put_nowait({"type": "lifespan.shutdown"})
        (waited,) = await second
        (new,) = await posted(app, signed(b"{}", "c"))
        for answer in (waited, new):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert said == ["lifespan.startup.complete"]
        release.set()
        assert (await first)[0].status_code == 204
        await living
        assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(run())


def test_a_stop_that_takes_too_long() -> None:
    """After `grace` a running message gets 503, so that it is sent again."""
    release = threading.Event()

    def hold(_: Delivery) -> Outcome:
        release.wait(30)
        return Outcome(Verdict.NEW)

    async def run() -> int:
        app = receiver(hold, grace=0.1)
        request = asyncio.create_task(posted(app, signed(b"{}")))
        await asyncio.sleep(0.1)
        app.stop()
        return (await request)[0].status_code

    assert asyncio.run(run()) == 503
    release.set()


def test_too_old() -> None:
    """The age of a message is that of its publication, not of its request."""
    old = replace(envelope(), created_at=datetime.now(UTC) - timedelta(days=2))
    seen: list[datetime | None] = []
    assert statuses(receiver(taking(lambda each: seen.append(each.created_at))), of_outbox(old)) == [204]
    assert seen == [old.created_at]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"handler": 5}, "^handler=5"),
        ({"secrets": "s3cr3t"}, "^secrets: expected whsec_"),
        ({"secrets": []}, "^secrets"),
        ({"largest": 0}, "^largest=0"),
        ({"waiting": 0}, "^waiting=0"),
        ({"timeout": 0}, "^timeout=0"),
        ({"concurrency": 0}, "^concurrency=0"),
        ({"on_event": 5}, "^on_event=5"),
        ({"dead_letter": 5}, "^dead_letter=5"),
        ({"dead_letter": asked}, "^dead_letter=.*: expected a synchronous function"),
    ],
)
def test_wrong_options(options: dict[str, Any], why: str) -> None:
    """One error that names the option, and no secret."""
    with pytest.raises(InvalidOption, match=why) as error:
        WebhookReceiver(**{"handler": payloads([]), "secrets": SECRET, **options})
    assert "s3cr3t" not in str(error.value)
    with pytest.raises(TypeError, match="colour"):
        WebhookReceiver(payloads([]), SECRET, colour="blue")  # type: ignore[call-arg]


def test_no_text_has_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a repr, nor an answer, nor a log has it; a refusal is logged once a minute."""
    app = receiver(payloads([]))
    body, headers = signed(b"{}")
    forged = (body + b" ", headers)
    answers = post(app, forged, forged, (body, headers))
    shown = f"{app!r} {vars(app)} {caplog.text} {[each.text for each in answers]}"
    for secret in (SECRET[6:], "the secret of", headers["webhook-signature"]):
        assert secret not in shown
    assert caplog.text.count("a request got 401: webhook-signature") == 1
