"""The file of users and passwords of `inbox-outbox web`."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inbox.errors import InvalidOption
from inbox_outbox_base.checks import deciding

_KIND = "scrypt"
_COST, _BLOCK, _LANES = 1 << 15, 8, 3
"""scrypt's N, r and p, for new passwords: 32 MB, and about a fifth of a second."""
_LARGEST = 1 << 18
"""The most that N * r of a line may be: scrypt takes 128 times as many bytes."""
_MOST_LANES = 16
_SALT, _DIGEST = 16, 32
_SHORTEST, _LONGEST = 8, 1_024
"""Of a password, in bytes of UTF-8."""


@dataclass(frozen=True, slots=True)
class StoredPassword:
    """One line of the file, without the name: `scrypt:N:r:p:salt:digest:actions`."""

    cost: int
    block: int
    lanes: int
    salt: bytes
    digest: bytes
    actions: frozenset[str]

    @classmethod
    def of(cls, password: str, actions: frozenset[str]) -> "StoredPassword":
        """Of a new password.

        Raises:
            InvalidOption: it is too short or too long.
        """
        if not _SHORTEST <= len(password.encode(errors="surrogateescape")) <= _LONGEST:
            raise InvalidOption(f"password: expected {_SHORTEST} to {_LONGEST:,} bytes")
        salt = secrets.token_bytes(_SALT)
        return cls(_COST, _BLOCK, _LANES, salt, _derived(password, salt, _COST, _BLOCK, _LANES), actions)

    @classmethod
    def read(cls, text: str) -> "StoredPassword":
        """Of a line.

        Raises:
            ValueError: it is none.
        """
        kind, cost, block, lanes, salt, digest, actions = text.split(":")
        found = cls(
            int(cost),
            int(block),
            int(lanes),
            base64.b64decode(salt, validate=True),
            base64.b64decode(digest, validate=True),
            frozenset(filter(None, actions.split(","))),
        )
        is_bounded = found.cost > 1 and found.block > 0 and found.cost * found.block <= _LARGEST
        is_power = found.cost & (found.cost - 1) == 0
        if kind != _KIND or not is_bounded or not is_power or not 1 <= found.lanes <= _MOST_LANES:
            raise ValueError(kind)
        if len(found.salt) < _SALT or len(found.digest) != _DIGEST:
            raise ValueError("salt or digest")
        return found

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(each).decode() for each in (self.salt, self.digest))
        actions = ",".join(sorted(self.actions))
        return f"{_KIND}:{self.cost}:{self.block}:{self.lanes}:{salt}:{digest}:{actions}"

    def is_of(self, password: str) -> bool:
        """Whether this is the password; takes equally long for each."""
        derived = _derived(password, self.salt, self.cost, self.block, self.lanes)
        return hmac.compare_digest(derived, self.digest)


_NOBODY = StoredPassword(_COST, _BLOCK, _LANES, bytes(_SALT), bytes(_DIGEST), frozenset())
"""Compared with the password of a name that is not in the file, so that it takes as long."""


class Passwords:
    """The users of a file. A password that was right before is remembered as a digest with a key of this
    process, so that only the first request of a user costs time.

    Attributes:
        users: the lines, by name.
    """

    def __init__(self, users: Mapping[str, StoredPassword]) -> None:
        self.users = users
        self._key = secrets.token_bytes(_DIGEST)
        self._right: dict[str, bytes] = {}

    @classmethod
    def read(cls, path: Path) -> "Passwords":
        """Those of a file: a line for each user, as `inbox-outbox password` prints it; empty lines and lines
        that begin with # are left out.

        Raises:
            InvalidOption: the file cannot be read, or a line of it, which is named by its number.
        """
        try:
            lines = path.read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "expected UTF-8"
            raise InvalidOption(f"--password-file={str(path)!r}: {why}") from None
        users: dict[str, StoredPassword] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, rest = line.strip().partition(":")
            try:
                found = StoredPassword.read(rest)
                is_new = deciding.operator(name) not in users
            except (ValueError, InvalidOption):
                is_new = False
            if not is_new:
                expected = "a line of `inbox-outbox password`, and each name once"
                raise InvalidOption(f"--password-file={str(path)!r}, line {number}: expected {expected}")
            users[name] = found
        if not users:
            raise InvalidOption(f"--password-file={str(path)!r}: it has no users")
        return cls(users)

    def remembers(self, name: str, password: str) -> bool:
        """Whether this password of the user was right before."""
        return hmac.compare_digest(self._right.get(name, b""), self._seen(name, password))

    def are_right(self, name: str, password: str) -> bool:
        """Whether this is the user's password; takes a fifth of a second."""
        is_right = self.users.get(name, _NOBODY).is_of(password) and name in self.users
        if is_right:
            self._right[name] = self._seen(name, password)
        return is_right

    def _seen(self, name: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{name}\0{password}".encode(errors="surrogateescape"), "sha256")


def _derived(password: str, salt: bytes, cost: int, block: int, lanes: int) -> bytes:
    given = password.encode(errors="surrogateescape")
    most = 256 * cost * block + (1 << 20)
    return hashlib.scrypt(given, salt=salt, n=cost, r=block, p=lanes, maxmem=most, dklen=_DIGEST)
