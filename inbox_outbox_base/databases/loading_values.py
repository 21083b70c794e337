"""The values that the Spark writer and a database exchange."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any, Protocol, Self

import pyarrow as pa
from sqlalchemy.sql.elements import quoted_name
from sqlalchemy.types import UserDefinedType

from inbox_outbox_base.tables.inbox import Tables

from .results import Results

_AT_ONCE = 10_000
"""How many rows of an answer are in memory at a time, beside the values kept of them."""


class Write(Protocol):
    """The writer's options that a database needs to know."""

    @property
    def table(self) -> str | None: ...
    @property
    def table_schema(self) -> str | None: ...
    @property
    def consumer(self) -> str: ...
    @property
    def results(self) -> Results: ...
    @property
    def isolation_level(self) -> str | None: ...
    @property
    def query_timeout(self) -> float: ...
    @property
    def lock_timeout(self) -> float: ...
    @property
    def max_connections(self) -> int | None: ...


class Type(UserDefinedType[Any]):
    """A type by the database's own name for it."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **kw: Any) -> str:
        """The type's text in a CREATE TABLE or a CAST."""
        return self.name


@dataclass(frozen=True, slots=True)
class Target:
    """A column of the target table."""

    name: str
    kind: str
    """The type's bare name in lower case; for a domain, the type beneath it."""
    full: str
    """The type's text in a CAST, without a length: to that, the CAST would cut values silently."""
    scale: int | None
    """For an exact number: digits after the decimal point, if limited."""
    required: bool
    """Whether a row must have a value for it."""
    generated: bool
    """Whether the database generates its values, and refuses to be given any."""


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique key or index of the target table."""

    name: str
    columns: frozenset[str | None]
    """None stands for an expression, or for a part of a column."""
    problem: str | None
    """Why it does not reject every second row with the same values."""
    equates_nulls: bool = False
    """Whether two NULLs are the same value in it."""


@dataclass(frozen=True, slots=True)
class Column:
    """How one column of the DataFrame is transferred."""

    name: str
    staged: str
    """The type in the temporary table: it holds every value of the Arrow type."""
    cast: str | None
    """The type to CAST to on the way to the target; None where assignment is exact or raises an error."""
    same: bool
    """Whether staged and target types are the same."""
    convert: Callable[[pa.Array], pa.Array] | None = None
    """The conversion to the form that is sent, if it is not Arrow's own."""
    compared: str | None = None
    """The type in a temporary table whose values must compare as in the target, if it is not `staged`."""

    def __post_init__(self) -> None:
        # SQLAlchemy does not know every keyword of every server.
        object.__setattr__(self, "name", quoted_name(self.name, quote=True))


Owner = bytes | int
"""Who has a key: the claim of its row or, if it was written in bulk, the id of its load in the ledger."""


def claim_of(load: int) -> bytes:
    """The claim of a load's rows on databases that do not store the load itself: its id, and a digest of it,
    which a random claim does not have."""
    number = load.to_bytes(8, "big")
    return number + blake2b(number, digest_size=8, person=b"inbox-outbox").digest()


@lru_cache(maxsize=1_000)
def owner_of(claim: bytes) -> Owner:
    """The load that such a claim names; any other claim as it is."""
    load = int.from_bytes(claim[:8], "big")
    return load if load < 2**63 and claim == claim_of(load) else claim


@dataclass(frozen=True, slots=True)
class WriterClaim:
    """Who takes keys. Without a ledger: 6 bytes shared by the whole job, 4 for the partition, 6 for the
    attempt."""

    tables: Tables
    consumer: str
    job: bytes
    part: int
    attempt: bytes
    load: int | None
    """The attempt's row in the ledger, if it has one."""

    @classmethod
    def of(
        cls, tables: Tables, consumer: str, job: tuple[str, int, str], part: int, load: int | None = None
    ) -> Self:
        """A new attempt's claim; `job` is its run, batch and work."""
        name = blake2b("\0".join([consumer, *map(str, job)]).encode(), digest_size=6).digest()
        return cls(tables, consumer, name, part, os.urandom(6), load)

    @property
    def partition(self) -> bytes:
        """The bytes that every attempt at this partition shares."""
        return self.job + self.part.to_bytes(4, "big")

    @property
    def id(self) -> bytes:
        """The claim as it is stored."""
        return self.partition + self.attempt if self.load is None else claim_of(self.load)


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """Keys that are in the inbox."""

    owners: dict[str, Owner] = field(default_factory=dict)
    """Who has each."""
    digests: dict[str, bytes] = field(default_factory=dict)
    """The stored digests; not every row has one."""

    def add(self, rows: Iterable[Any]) -> None:
        """Add rows of key, claim, load and digest."""
        left = iter(rows)
        while some := list(islice(left, _AT_ONCE)):
            keys, claims, loads, digests = zip(*some, strict=True)  # columns are faster than row by row
            pairs = zip(claims, loads, strict=True)
            owners = [load if claim is None else owner_of(bytes(claim)) for claim, load in pairs]
            self.owners.update(zip(keys, owners, strict=True))
            given = zip(keys, digests, strict=True)
            self.digests.update((key, bytes(digest)) for key, digest in given if digest is not None)


@dataclass(frozen=True, slots=True)
class TakenKeys:
    """Which keys are ours now, and who had the others."""

    fresh: pa.BooleanArray
    """One value for each key: whether it is ours."""
    known: KnownKeys
    """The keys taken before."""
