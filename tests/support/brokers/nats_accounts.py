"""An operator of NATS with an account and a user, who log in by JWT."""

import base64
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import nkeys

_FREE = dict.fromkeys(("subs", "data", "payload"), -1)
_LIMITS = dict.fromkeys(("imports", "exports", "conn", "leaf", "streams", "consumer", *_FREE), -1)
_ROOM = {"mem_storage": -1, "disk_storage": -1}
"""With them, an account has JetStream."""
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_CREDENTIALS = """-----BEGIN NATS USER JWT-----
{token}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""
_SETTINGS = """operator: {operator}
system_account: {system}
resolver: MEMORY
resolver_preload {{
{accounts}
}}
"""


def written(credentials: Path) -> str:
    """Write the credentials of a user; the settings of a server that knows the user."""
    operator, system = _pair(nkeys.PREFIX_BYTE_OPERATOR), _pair(nkeys.PREFIX_BYTE_ACCOUNT)
    account, seed = _pair(nkeys.PREFIX_BYTE_ACCOUNT), _seed(nkeys.PREFIX_BYTE_USER)
    token = _signed(nkeys.from_seed(bytearray(seed)), account, "user", _FREE)
    credentials.write_text(_CREDENTIALS.format(token=token, seed=seed.decode()))
    accounts = {
        _name(system): _signed(system, operator, "account", {"limits": _LIMITS}),
        _name(account): _signed(account, operator, "account", {"limits": {**_LIMITS, **_ROOM}}),
    }
    return _SETTINGS.format(
        operator=_signed(operator, operator, "operator", {"system_account": _name(system)}),
        system=_name(system),
        accounts="\n".join(f"{name}: {text}" for name, text in accounts.items()),
    )


def _seed(kind: int) -> bytes:
    return bytes(nkeys.encode_seed(os.urandom(32), kind))


def _pair(kind: int) -> Any:
    return nkeys.from_seed(bytearray(_seed(kind)))


def _name(pair: Any) -> str:
    return bytes(pair.public_key).decode()


def _signed(subject: Any, issuer: Any, kind: str, fields: Mapping[str, Any]) -> str:
    claims = {
        "jti": uuid4().hex,
        "iat": int(time.time()),
        "iss": _name(issuer),
        "sub": _name(subject),
        "name": kind,
        "nats": {**fields, "type": kind, "version": 2},
    }
    text = ".".join(_encoded(json.dumps(each).encode()) for each in (_HEADER, claims))
    return f"{text}.{_encoded(issuer.sign(text.encode()))}"


def _encoded(given: bytes) -> str:
    return base64.urlsafe_b64encode(given).rstrip(b"=").decode()
