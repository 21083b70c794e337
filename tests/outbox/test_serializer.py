"""Payloads are serialized to bytes once, when they are published."""

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from outbox import Message, Outbox, Refused, Relay, peek, retry_all
from outbox._publishing.serializer import serialize
from outbox.errors import InvalidMessage, InvalidOption
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import Recorder
from tests.support.published import TOPIC, relayed

TEXT, JSON, BINARY = "text/plain; charset=utf-8", "application/json", "application/octet-stream"


class Colour(Enum):
    """An enum whose values are text."""

    RED = "red"


class Size(IntEnum):
    """An enum of numbers."""

    LARGE = 3


class Kind(StrEnum):
    """An enum of strings."""

    NEW = "new"


@dataclass
class Line:
    """A dataclass inside another one."""

    article: str
    price: Decimal
    colours: list[Colour] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Order:
    """A dataclass with types that JSON does not have."""

    id: UUID
    lines: tuple[Line, ...]
    placed_at: datetime


class Customer(BaseModel):
    """A pydantic model inside another one."""

    name: str
    born: date


class Contract(BaseModel):
    """A pydantic model with a default, and with an alias that is not used."""

    customer: Customer
    amount: Decimal
    runs: timedelta = timedelta(days=1)
    kind: Kind = Field(default=Kind.NEW, alias="theKind")


@pydantic_dataclass
class Parcel:
    """A pydantic dataclass."""

    weight: Decimal


AT = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=timezone(timedelta(hours=2)))
NUMBER = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
ORDER = Order(NUMBER, (Line("tea", Decimal("1.10"), [Colour.RED]), Line("ä", Decimal("1E+2"))), AT)
CONTRACT = Contract(customer=Customer(name="Ä", born=date(2000, 1, 2)), amount=Decimal("0.30"))

AS_BYTES: dict[str, tuple[Any, bytes, str]] = {
    "bytes": (b"\x00\xff", b"\x00\xff", BINARY),
    "bytearray": (bytearray(b"ab"), b"ab", BINARY),
    "memoryview": (memoryview(b"abcd"), b"abcd", BINARY),
    "memoryview with gaps": (memoryview(b"abcd")[::2], b"ac", BINARY),
    "no bytes": (b"", b"", BINARY),
    "text": ("Grüße 🙂\n", "Grüße 🙂\n".encode(), TEXT),
    "no text": ("", b"", TEXT),
    "text with NUL": ("a\0b", b"a\0b", TEXT),
    "text that is JSON": ('{"a":1}', b'{"a":1}', TEXT),
}
AS_JSON: dict[str, tuple[Any, Any]] = {
    "keys that are no text": (
        {7: 1, -2.5: [{None: 1}], True: {"1": 1}, False: '"1":', "a1": 0},
        {"7": 1, "-2.5": [{"null": 1}], "true": {"1": 1}, "false": '"1":', "a1": 0},
    ),
    "dict": ({"b": 1, "a": [True, None, 1.5, "ä"]}, {"b": 1, "a": [True, None, 1.5, "ä"]}),
    "another mapping": (OrderedDict(a=1), {"a": 1}),
    "list": ([1, "a"], [1, "a"]),
    "tuple": ((1, "a"), [1, "a"]),
    "number": (7, 7),
    "large number": (2**80, 2**80),
    "bool": (False, False),
    "Decimal": ({"a": Decimal("1.10")}, {"a": "1.10"}),
    "UUID": ([NUMBER], [str(NUMBER)]),
    "datetime": ([AT, AT.date(), time(1, 2)], ["2026-01-02T03:04:05.678900+02:00", "2026-01-02", "01:02:00"]),
    "UTC": (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
    "enums": ([Colour.RED, Size.LARGE, Kind.NEW], ["red", 3, "new"]),
    "dataclasses": (
        ORDER,
        {
            "id": str(NUMBER),
            "lines": [
                {"article": "tea", "price": "1.10", "colours": ["red"]},
                {"article": "ä", "price": "1E+2", "colours": []},
            ],
            "placed_at": "2026-01-02T03:04:05.678900+02:00",
        },
    ),
    "pydantic model": (
        CONTRACT,
        {"customer": {"name": "Ä", "born": "2000-01-02"}, "amount": "0.30", "runs": "P1D", "kind": "new"},
    ),
    "models in a dict": ({"a": [CONTRACT.customer]}, {"a": [{"name": "Ä", "born": "2000-01-02"}]}),
    "pydantic dataclass": (Parcel(Decimal("1.5")), {"weight": "1.5"}),
}


@pytest.mark.parametrize(("payload", "expected", "content_type"), AS_BYTES.values(), ids=AS_BYTES)
def test_bytes_and_text_stay_what_they_are(payload: Any, expected: bytes, content_type: str) -> None:
    """Bytes stay unchanged, text becomes UTF-8, and the content type tells them apart."""
    assert serialize(payload) == (expected, content_type)


@pytest.mark.parametrize(("payload", "expected"), AS_JSON.values(), ids=AS_JSON)
def test_everything_else_is_json(payload: Any, expected: Any) -> None:
    """Dictionaries, lists, dataclasses and pydantic models are compact JSON in UTF-8."""
    found, content_type = serialize(payload)
    assert content_type == JSON
    assert json.loads(found) == expected
    assert found.decode() == json.dumps(expected, ensure_ascii=False, separators=(",", ":"))


def test_all_of_it_comes_through(migrated: Database) -> None:
    """Payloads of every kind are sent exactly as the serializer returned them."""
    engine = migrated.engine()
    payloads = [payload for payload, *_ in (*AS_BYTES.values(), *AS_JSON.values())]
    with engine.begin() as connection:
        for number, payload in enumerate(payloads):
            Outbox().publish(connection, TOPIC, payload, key=f"{number:02}")
    came = sorted(relayed(engine), key=lambda message: message.key or "")
    assert [(each.payload, each.content_type) for each in came] == [serialize(each) for each in payloads]


def published(database: Database, payload: Any, **options: Any) -> tuple[bytes, str]:
    """Publish a payload; return the payload and content type that are sent."""
    engine = database.engine()
    with engine.begin() as connection:
        Outbox(**options).publish(connection, TOPIC, payload)
    (message,) = relayed(engine)
    return message.payload, message.content_type


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]

UNFIT: dict[str, tuple[Any, str]] = {
    "1 and its text": ({1: "a", "1": "b"}, "payload of type dict.*different keys become the name '1'"),
    "None and its text": ({None: 1, "null": 2}, "different keys become the name 'null'"),
    "True and its text": ({"true": 1, True: 2}, "different keys become the name 'true'"),
    "False and its text": ({False: 1, "false": 2}, "different keys become the name 'false'"),
    "a fraction and its text": ({"a": 1, -1.5: 2, "-1.5": 3}, "different keys become the name '-1.5'"),
    "a large number and its text": ({1e22: 1, "1e+22": 2}, r"different keys become the name '1e\+22'"),
    "1 and its text, inside": ([{"a": [1, {"b": {1: 1, "1": 2}}]}], "different keys become the name '1'"),
    "1 and its text beside a UUID": ([{1: 1, "1": 2}, NUMBER], "different keys become the name '1'"),
    "a lone surrogate": ("a\ud800", "not Unicode"),
    "a lone surrogate in JSON": ({"a": "\ud800"}, "not Unicode"),
    "not a number": ({"a": float("nan")}, "payload of type dict"),
    "infinite": ([float("inf")], "payload of type list"),
    "infinite beside a UUID": ([float("inf"), NUMBER], "payload of type list"),
    "a set": ({1, 2}, "payload of type set.*a set is not JSON"),
    "bytes in JSON": ({"a": b"b"}, "payload of type dict.*a bytes is not JSON"),
    "an object": (object(), "payload of type object"),
    "a class": (Order, "payload of type type"),
    "a class of pydantic's": (Contract, "payload of type ModelMetaclass"),
    "a function": (published, "payload of type function"),
    "a key that is a tuple": ({(1, 2): 3}, "payload of type dict"),
    "a circle": (CIRCLE, "payload of type list"),
    "a deep one": (DEEP, "payload of type list"),
}


@on("sqlite")
def test_payloads_that_cannot_be_serialized(migrated: Database) -> None:
    """A payload that cannot be serialized raises a clear error that names it, before anything is written, and
    the transaction stays usable."""
    engine = migrated.engine()
    with engine.begin() as connection:
        for name, (payload, told) in UNFIT.items():
            with case(name), pytest.raises(InvalidMessage, match=told):
                Outbox().publish(connection, TOPIC, payload)
        Outbox().publish(connection, TOPIC, "a")
    assert [message.payload for message in relayed(engine)] == [b"a"]


@spread("many", [20, 1])
def test_tombstones(migrated: Database, many: int) -> None:
    """None stays a tombstone, delayed, dead or retried; an empty payload is not a tombstone, whatever the
    serializer."""
    engine, recorder = migrated.engine(), Recorder(lambda _: Refused("no"))
    outbox = Outbox(serializer=lambda payload: (bytes(payload), "x/y"))
    with engine.begin() as connection:
        outbox.publish_many(connection, [Message(TOPIC, None, f"{number}") for number in range(many)])
        outbox.publish(connection, TOPIC, b"", key="empty")
        outbox.publish(connection, TOPIC, None, key="delayed", delay=0.001)
    assert {each.content_type for each in peek(engine, many)} == {""}
    Relay(engine, recorder).run_once()
    retry_all(engine, "dead")
    assert {each.key: (each.payload, each.content_type) for each in relayed(engine)} == {
        **{f"{number}": (None, "") for number in range(many)},
        "empty": (b"", "x/y"),
        "delayed": (None, ""),
    }


@on("sqlite")
def test_a_tombstone_has_a_key_and_nothing_else(migrated: Database) -> None:
    """A tombstone stands for the deletion of its key: without a key, or with a content type, it is
    rejected."""
    given: list[dict[str, Any]] = [{"key": None}, {"key": "k", "content_type": "text/plain"}]
    with migrated.engine().begin() as connection:
        for each in given:
            with case(each), pytest.raises(InvalidMessage, match="payload=None, "):
                Outbox().publish(connection, TOPIC, None, **each)
    assert relayed(migrated.engine()) == []


def test_a_payload_may_change_afterwards(postgres: Database) -> None:
    """The payload sent is the one at the time of publishing, even if the caller changes the object later."""
    engine, payload = postgres.engine(), {"a": 1}
    raw = bytearray(b"ab")
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message(TOPIC, payload), Message(TOPIC, raw)])
        payload["a"], raw[0] = 2, 0
    assert [message.payload for message in relayed(engine)] == [b'{"a":1}', b"ab"]


@on("sqlite")
def test_a_serializer_of_one_s_own(migrated: Database) -> None:
    """A serializer of the application returns the bytes of a payload and their content type."""

    def shout(payload: Any) -> tuple[bytes, str]:
        return str(payload).upper().encode(), "text/shouting"

    assert published(migrated, "hello", serializer=shout) == (b"HELLO", "text/shouting")


def test_a_content_type_of_one_s_own(postgres: Database) -> None:
    """The content type of a message overrides that of the serializer."""
    engine = postgres.engine()
    with engine.begin() as connection:
        Outbox().publish(connection, TOPIC, b"GIF89a", content_type="image/gif")
    (message,) = relayed(engine)
    assert message.content_type == "image/gif"


@on("sqlite")
def test_a_serializer_that_returns_something_else(migrated: Database) -> None:
    """A serializer that does not return bytes and a content type is rejected before anything is written."""
    results: list[Any] = [("text", "text/plain"), b"bytes", (b"bytes", ""), (b"bytes", None)]
    with migrated.engine().begin() as connection:
        for result in results:
            outbox = Outbox(serializer=lambda _, result=result: result)  # type: ignore[misc]
            with case(result), pytest.raises(InvalidOption, match=r"^(serializer|content_type)="):
                outbox.publish(connection, TOPIC, "a")
        Outbox().publish(connection, TOPIC, "a")


@on("sqlite")
def test_a_serializer_s_error_comes_through(migrated: Database) -> None:
    """An error raised by the serializer reaches the caller unchanged."""
    with pytest.raises(ZeroDivisionError):
        published(migrated, "a", serializer=lambda _: 1 // 0)
