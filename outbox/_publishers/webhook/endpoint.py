"""Where webhooks of a topic go."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

import httpcore

from inbox_outbox_base.brokers.webhook.signing import WebhookSecrets
from inbox_outbox_base.errors.outbox import InvalidOption

_URL = re.compile(r"https?://[!-~]+")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_EXPECTED = "expected https://host/path, in ASCII, without a login and without a fragment"


@dataclass(frozen=True)
class WebhookEndpoint:
    """A URL, and the secrets that its receiver knows. Its repr has neither secrets nor the URL's path, which
    can be a secret, too.

    Raises:
        InvalidOption: not such a URL, or not such secrets. The error repeats neither.
    """

    url: str = field(repr=False)
    """https://host:port/path; http:// only to networks that the publisher's `allow` names."""
    secrets: str | Sequence[str] = field(repr=False)
    """A secret as Standard Webhooks has it, "whsec_" and Base64 of 24 to 64 bytes; or several, while secrets
    are being replaced: each signs."""
    signers: WebhookSecrets = field(init=False, repr=False, compare=False)
    """The same, ready to sign."""
    place: str = field(init=False, compare=False)
    """The URL without its path, for people."""

    def __post_init__(self) -> None:
        parts = _parts(self.url)
        port = "" if parts.port is None else f":{parts.port}"
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        object.__setattr__(self, "place", f"{parts.scheme}://{host}{port}")
        object.__setattr__(self, "signers", WebhookSecrets(self.secrets, error=InvalidOption))

    @property
    def is_encrypted(self) -> bool:
        """Whether it speaks TLS."""
        return self.url.startswith("https:")

    @property
    def authority(self) -> str:
        """Host and port, as a request names them: an IPv6 address in brackets."""
        return self.place.partition("://")[2]

    @property
    def target(self) -> httpcore.URL:
        """The same for the client."""
        parts = urlsplit(self.url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return httpcore.URL(scheme=parts.scheme, host=str(parts.hostname), port=parts.port, target=target)


def _parts(url: object) -> SplitResult:
    try:
        if not isinstance(url, str) or not _URL.fullmatch(url) or "#" in url or "\\" in url:
            raise InvalidOption(f"url: {_EXPECTED}")
        parts = urlsplit(url)
        is_right = _HOST.fullmatch(parts.hostname or "") and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        is_right = None
    if not is_right:
        raise InvalidOption(f"url: {_EXPECTED}")
    return parts
