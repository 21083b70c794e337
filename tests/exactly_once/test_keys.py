"""Business keys: which values are valid, and which keys are equal; the same on every database."""

from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import create_engine

from inbox import AsyncInbox, Inbox, Key, StatusInbox, Store, Verdict
from inbox.errors import InboxError, InvalidKey, InvalidOption
from inbox_outbox_base.checks.keys import encode_key
from tests.support.cases import case
from tests.support.database import Database

INBOX = Inbox("bookkeeping", wait=0)


class Kind(StrEnum):
    """An enum whose members are strings."""

    ORDER = "order"


class Name(str, Enum):  # noqa: UP042 - as a StrEnum it would format as its text
    """The older form of a string enum: formatted, its members read `Name.ORDER`."""

    ORDER = "order"


class Number(IntEnum):
    """An enum whose members are whole numbers."""

    SEVEN = 7


UID = UUID("12345678-1234-5678-1234-567812345678")
SAME: list[tuple[Key, Key]] = [
    (42, "42"),
    (-1, "-1"),
    (Number.SEVEN, "7"),
    (UID, "12345678-1234-5678-1234-567812345678"),
    (Kind.ORDER, "order"),
    (Name.ORDER, "order"),
    ((UID, 1), (str(UID), 1)),
    ((Name.ORDER, Number.SEVEN), ("order", 7)),
]
"""A key, and the text or the tuple that it is the same as."""


DIFFERENT: list[Key] = [
    "A1",
    "a1",
    "Á1",
    "á1",
    "A1 ",
    "A1  ",
    " A1",
    "A1\t",
    "A1\n",
    "A 1",
    "A\u00a01",
    "A\u200b1",
    "\ufeffA1",
    " ",
    "  ",
    "'",
    '"',
    "\\",
    "%",
    "_",
    "%s",
    ":key",
    "caf\u00e9",  # composed
    "cafe\u0301",  # decomposed
    "cafe",
    "stra\u00dfe",
    "strasse",
    "\u0131",  # dotless i
    "i",
    "I",
    "\u0130",
    "\u03c3",  # sigma inside a word
    "\u03c2",  # sigma at its end
    "\ufb01",  # one letter fi
    "fi",
    "\uff11",  # wide digit one
    "1",
    "01",
    "\U0001f642",
    "\U0001f643",
    "\U0001f44d",
    "\U0001f44d\U0001f3fd",
    "\U0010ffff",
    "\x01",
    "\x7f",
    "x" * 512,
    "x" * 511 + "y",
    "x" * 511,
    "\u20ac" * 170 + "xx",  # 512 bytes
    "\U0001f642" * 128,  # 512 bytes
    "null",
    "NULL",
    ("a", "b:c"),
    ("a:b", "c"),
    ("a", "b", "c"),
    ("ab", "c"),
    ("a", "bc"),
    ("a,b",),
    ("a", "b"),
    ('a","b',),
    ("a\\", "b"),
    ("a",),
    ("A",),
    ("a ",),
    "a",
    (1,),
    ("1",),
    (1, 2),
    (12,),
    ("12",),
    (-1,),
    (0,),
    (2**70,),
    ("",),
    ("", ""),
    ("caf\u00e9",),
    ("cafe\u0301",),
    ("x" * 508,),  # with its brackets and quotes: 512 bytes
]


def test_different_keys_are_different_messages(migrated: Database) -> None:
    """Keys compare byte for byte: case, blanks, accents, emoji and all of 512 bytes count, in single messages
    and in batches. Each key is a duplicate only of itself."""
    engine = migrated.engine()
    assert len(set(DIFFERENT)) == len(DIFFERENT)
    with engine.begin() as connection:
        single = {key: INBOX.accept(connection, key) for key in DIFFERENT}
    assert {key for key, verdict in single.items() if verdict is not Verdict.NEW} == set()
    with engine.begin() as connection:
        assert {INBOX.accept(connection, key) for key in DIFFERENT} == {Verdict.DUPLICATE}
        assert set(INBOX.accept_many(connection, DIFFERENT)) == {Verdict.DUPLICATE}


def test_different_keys_are_different_in_a_batch(migrated: Database) -> None:
    """The same keys stay different when a batch takes them first, in one statement."""
    engine = migrated.engine()
    with engine.begin() as connection:
        assert set(INBOX.accept_many(connection, DIFFERENT)) == {Verdict.NEW}
    with engine.begin() as connection:
        assert set(INBOX.accept_many(connection, DIFFERENT[::-1])) == {Verdict.DUPLICATE}
        assert {INBOX.accept(connection, key) for key in DIFFERENT} == {Verdict.DUPLICATE}


def test_consumers_do_not_share_keys(migrated: Database) -> None:
    """Each consumer takes the key once; consumers' names also compare byte for byte."""
    consumers = [
        "billing",
        "Billing",
        "billing ",
        "billing\u0301",
        "\U0001f642",
        "b" * 128,
        "%",
        "bill",
        "ing",
    ]
    with migrated.engine().begin() as connection:
        for expected in (Verdict.NEW, Verdict.DUPLICATE):
            assert {Inbox(name).accept(connection, "order-1") for name in consumers} == {expected}
        for name in consumers:
            assert Inbox(name).accept_many(connection, ["order-1", "order-2"]) == [
                Verdict.DUPLICATE,
                Verdict.NEW,
            ]


def test_keys_that_are_the_same() -> None:
    """A whole number or a UUID equals its text, alone and inside tuples; for a subclass of `str` or `int`,
    only the plain value counts."""
    for key, text in SAME:
        assert encode_key(key) == encode_key(text)
        assert type(encode_key(key)) is str


def test_a_subclass_of_str_is_its_text(sqlite: Database) -> None:
    """An enum's member and its text are the same key, and the same consumer."""
    with sqlite.engine().begin() as connection:
        keys: list[Key] = [Kind.ORDER, Name.ORDER, "order", (Name.ORDER, 1), ("order", 1)]
        for number, key in enumerate(keys):
            verdict = Verdict.NEW if number in (0, 3) else Verdict.DUPLICATE
            assert INBOX.accept(connection, key) is verdict
        assert Inbox(Name.ORDER).accept(connection, UID) is Verdict.NEW
        assert Inbox("order").accept(connection, str(UID)) is Verdict.DUPLICATE


def test_a_key_is_its_text_in_every_store(store: Store) -> None:
    """In status-table mode too, every store sees only the text of a key or consumer."""
    keys: list[Key] = [Name.ORDER, "order", 42, "42", UID, str(UID)]
    for number, key in enumerate(keys):
        for consumer in (Name.ORDER, "order"):
            with StatusInbox(consumer, store=store).claim(key) as claim:
                assert claim.is_new is (number % 2 == 0 and consumer is Name.ORDER)


def nested() -> list[Any]:
    """A list that is too deep for Python to print."""
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


REFUSED: dict[str, Any] = {
    "empty": "",
    "NUL": "\0",
    "NUL inside": "a\0b",
    "NUL at the end": "a\0",
    "lone surrogate": "a\ud800",
    "513 bytes": "x" * 513,
    "513 bytes of 3": "\u20ac" * 171,
    "514 bytes of 4": "\U0001f642" * 128 + "xx",
    "very long": "x" * 1_000_000,
    "None": None,
    "float": 4.2,
    "bool": True,
    "bytes": b"order-1",
    "a number with too many digits": 10**600,
    "a number that cannot be printed": 10**5_000,
    "list": ["a", "b"],
    "dict": {"a": 1},
    "a list nested too deep": nested(),
    "a part beside one that cannot be printed": ("a", 1.5, 10**5_000),
    "no parts": (),
    "part None": ("a", None),
    "part bool": ("a", True),
    "part float": ("a", 1.5),
    "part bytes": ("a", b"b"),
    "part tuple": ("a", ("b",)),
    "part NUL": ("a", "b\0"),
    "part surrogate": ("a", "\udfff"),
    "part with too many digits": (10**5_000,),
    "tuple of 513 bytes": ("x" * 509,),
    "tuple of many": tuple(range(1_000)),
}


def test_an_invalid_key_is_refused(sqlite: Database) -> None:
    """An invalid key raises `InvalidKey` with a short message that names the option, and the transaction goes
    on; a batch with an invalid key takes nothing."""
    with sqlite.engine().begin() as connection:
        for name, key in REFUSED.items():
            with case(name), pytest.raises(InvalidKey, match=r"^key=") as caught:
                INBOX.accept(connection, key)
            assert isinstance(caught.value, ValueError)
            assert isinstance(caught.value, InboxError)
            assert len(str(caught.value)) < 8_000
            str(caught.value).encode()
            with case(name), pytest.raises(InvalidKey, match=r"^key="):
                INBOX.accept_many(connection, ["good", key])
        assert INBOX.accept(connection, "good") is Verdict.NEW


def test_a_handler_refuses_an_invalid_key_before_it_begins() -> None:
    """A handler rejects an invalid key before it uses the database: the body does not run, and nothing is
    retried."""
    engine = create_engine("postgresql+psycopg://127.0.0.1:1/app")  # where nothing answers

    @INBOX.handler(engine, key=lambda message: message)
    def book(connection: Any, message: Any) -> None:
        pytest.fail("ran")

    for name, key in REFUSED.items():
        with case(name), pytest.raises(InvalidKey):
            book(key)
    engine.dispose()


@pytest.mark.parametrize("kind", [Inbox, AsyncInbox])
def test_an_invalid_consumer_is_refused(kind: Any) -> None:
    """A consumer is 1 to 128 bytes of UTF-8 without NUL."""
    for consumer in ("", "x" * 129, "\u20ac" * 43, "a\0", "\ud800", None, 7, b"billing"):
        with case(repr(consumer)), pytest.raises(InvalidOption, match=r"^consumer="):
            kind(consumer)
