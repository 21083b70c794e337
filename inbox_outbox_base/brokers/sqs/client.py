"""The client, boto3: it sends each request once, and its errors."""

from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
)

from .address import SQSAddress

__all__ = [
    "FAILURES",
    "NOT_SENT",
    "NO_LOGIN",
    "NO_QUEUE",
    "NO_RIGHT",
    "ClientError",
    "NoCredentialsError",
    "StrangeAnswer",
    "ask",
    "code_of",
    "is_login_refused",
    "is_servers_fault",
    "new_client",
    "plain",
    "text_of",
]


class StrangeAnswer(Exception):
    """Something has answered, but not as SQS does: a proxy, for example."""


FAILURES = (BotoCoreError, ClientError, OSError, StrangeAnswer)
"""What is raised if a request fails."""
NOT_SENT = (
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
)
"""Those after which the request was certainly not sent."""
NO_QUEUE = {"QueueDoesNotExist", "NonExistentQueue", "QueueDeletedRecently"}
NO_RIGHT = {"AccessDenied", "AccessDeniedException"}
NO_LOGIN = {
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "MissingAuthenticationToken",
    "NotAuthorized",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_SERVERS_FAULT = 500


def new_client(address: SQSAddress, *, connect: float, read: float, connections: int) -> Any:
    """A client. It is thread-safe, and connects with the first request.

    Args:
        connect: seconds in which a connection must be made.
        read: seconds without a byte after which a request is given up.
        connections: how many to keep.
    """
    login = (
        {"aws_access_key_id": address.access_key, "aws_secret_access_key": address.secret}
        if address.access_key
        else {}
    )
    # Each client has a session of its own: sessions are not thread-safe.
    session = boto3.session.Session(region_name=address.region, **login)
    config = Config(
        connect_timeout=connect,
        read_timeout=read,
        max_pool_connections=connections,
        # The client's own retries would outlast a lease, and hide whether the first request arrived.
        retries={"total_max_attempts": 1, "mode": "standard"},
    )
    return session.client("sqs", endpoint_url=address.endpoint, config=config)


def ask(request: Callable[..., dict[str, Any]], *needed: str, **fields: Any) -> dict[str, Any]:
    """The answer to a request.

    Args:
        request: a method of the client.
        needed: fields that the answer must have.
        fields: those of the request.

    Raises:
        Exception: one of `FAILURES`.
    """
    try:
        answer = request(**fields)
    except FAILURES:
        raise
    except Exception as error:  # of the client's parser, which expects an answer of SQS
        raise StrangeAnswer(f"{type(error).__name__}: {error}") from error
    for name in needed:
        if not answer.get(name):
            raise StrangeAnswer(f"an answer without {name}")
    return answer


def is_login_refused(error: Exception) -> bool:
    """Whether the login is not, or no longer, valid, or there is none."""
    return code_of(error) in NO_LOGIN or isinstance(error, NoCredentialsError)


def code_of(error: Exception) -> str:
    """The server's code, without the name of its protocol; empty if the server has not answered."""
    return plain(error.response["Error"].get("Code", "")) if isinstance(error, ClientError) else ""


def plain(code: Any) -> str:
    """A code without what older and newer protocols write before it."""
    return str(code).rpartition("#")[2].rpartition(".")[2]


def is_servers_fault(error: ClientError) -> bool:
    """Whether the server failed, instead of refusing the request."""
    return int(error.response["ResponseMetadata"].get("HTTPStatusCode", _SERVERS_FAULT)) >= _SERVERS_FAULT


def text_of(error: Exception) -> str:
    """What happened, on one line."""
    if isinstance(error, ClientError):
        return f"{code_of(error)}: {error.response['Error'].get('Message', '')}".rstrip(": ")
    return " ".join(f"{type(error).__name__}: {error}".split())
