"""The address of Amazon SQS, or of a server that speaks its API."""

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from inbox_outbox_base.errors.inbox import InvalidOption

EXPECTED = "sqs://access-key:secret@sqs.eu-west-1.amazonaws.com, or sqs+http:// without TLS"
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_REGION = re.compile(r"(?:.*\.)?sqs(?:-fips)?\.([a-z0-9-]+)\..*")
_ACCOUNT = re.compile(r"[0-9]*")
_DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class SQSAddress:
    """Where the queues are, and who connects. Its repr has no secret."""

    endpoint: str
    """The URL of the server, for the client."""
    region: str
    account: str
    """Whose queues these are; empty: those of the one who connects."""
    access_key: str = field(repr=False)
    secret: str = field(repr=False)

    def __str__(self) -> str:
        scheme, _, place = self.endpoint.partition("://")
        account = f"/{self.account}" if self.account else ""
        return f"{'sqs' if scheme == 'https' else 'sqs+http'}://{place}{account}"


def parse(url: str, *, error: type[InvalidOption] = InvalidOption) -> SQSAddress:
    """The address, checked.

    Args:
        url: sqs://host:port, or sqs+http:// without TLS. A login is written before the host, as
            access-key:secret@; an account after it, as /123456789012. ?region= names the region, if the host
            does not.
        error: the error to raise.

    Raises:
        InvalidOption: not an address of SQS. The error does not repeat the text, which may contain a secret.
    """
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if scheme not in ("sqs", "sqs+http") or not separator:
        raise error(f"url: expected {EXPECTED}")
    login, at, place = rest.rpartition("@")
    access_key, colon, secret = login.partition(":")
    if re.search("[/?#]", login):
        raise error("url: write / ? # as %2F %3F %23 in the access key and the secret, and @ as %40")
    if at and not (access_key and colon and secret):
        raise error("url: expected access-key:secret before the @, or no login at all")
    place, _, query = place.partition("?")
    server, _, account = place.partition("/")
    if not _ACCOUNT.fullmatch(account):
        raise error("url: expected the number of an account after the host, or nothing")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    region = settings.pop("region", None)
    if settings or region == "":
        raise error("url: expected no setting but ?region=")
    return SQSAddress(
        endpoint=f"{'https' if scheme == 'sqs' else 'http'}://{_server(server, error)}",
        region=region or _region(server),
        account=account,
        access_key=unquote(access_key),
        secret=unquote(secret),
    )


def _server(text: str, error: type[InvalidOption]) -> str:
    host, colon, port = text.rpartition(":") if re.search(r":[0-9]+$", text) else (text, "", "")
    if not _HOST.fullmatch(host) or (colon and not 0 < int(port) < 65_536):
        raise error(f"url: expected {EXPECTED}")
    return text


def _region(server: str) -> str:
    found = _REGION.fullmatch(server)
    return found[1] if found else _DEFAULT_REGION
