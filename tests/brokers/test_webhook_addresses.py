"""To which addresses webhooks go, however these are written, and that this is what is connected to."""

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outbox import Accepted, Outcome, Unavailable
from outbox._publishers.webhook.networks import Networks
from outbox.errors import InvalidOption, UnsafeBroker
from outbox.webhook import WebhookEndpoint, WebhookPublisher
from tests.servers import certificates
from tests.support.answers import published
from tests.support.brokers.webhook_endpoint import LOCAL, answer, endpoint, envelope
from tests.support.brokers.webhook_program import SECRET

OK = answer(204)
NOT_PUBLIC = """
0.0.0.0 0.1.2.3 10.1.2.3 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.254 168.63.129.16 169.254.169.254
172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.170 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255
198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1
64:ff9b::7f00:1 64:ff9b::10.0.0.1 64:ff9b::169.254.169.254 64:ff9b:1::8.8.8.8 100::1 100:0:0:1::1
2001::1 2001:0:7f00:1:: 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1:: 2002:808:808:: 3fff::1
4000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1 ff0e::1 2606:4700::1%eth0 nonsense
"""
PUBLIC = """
1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 126.1.1.1 128.0.0.1 168.63.129.17 169.253.0.1 172.15.0.1 172.32.0.1
192.0.1.1 192.167.0.1 223.255.255.255 ::ffff:8.8.8.8 64:ff9b::808:808 2001:200::1 2001:4860:4860::8888
2606:4700:4700::1111 2a00:1450::1
"""
THIS_MACHINE = """
127.0.0.1 127.1 2130706433 0x7f000001 0177.0.0.1 0 0.0.0.0 localhost [::1] [::] [::ffff:127.0.0.1]
[::ffff:7f00:1] [0:0:0:0:0:ffff:7f00:1] [64:ff9b::127.0.0.1]
"""


def test_which_addresses_are_public() -> None:
    """Only addresses of the Internet may be reached, and those only with TLS."""
    none = Networks([])
    assert [each for each in NOT_PUBLIC.split() if none.may_reach(each, is_encrypted=True)] == []
    assert [each for each in PUBLIC.split() if not none.may_reach(each, is_encrypted=True)] == []
    assert not any(none.may_reach(each, is_encrypted=False) for each in (PUBLIC + NOT_PUBLIC).split())


def test_networks_that_are_allowed() -> None:
    """They may be reached, also without TLS, and however IPv6 wraps their addresses; no others."""
    some = Networks(["10.0.0.0/8", "fd00:1::/32", "8.8.8.8"])
    for each in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00:1::9", "8.8.8.8"):
        assert some.may_reach(each, is_encrypted=True), each
        assert some.may_reach(each, is_encrypted=False), each
    for each in ("127.0.0.1", "::ffff:127.0.0.1", "fd00:2::1", "::10.1.2.3", "2002:a01:203::"):
        assert not some.may_reach(each, is_encrypted=True), each
    assert some.may_reach("11.0.0.1", is_encrypted=True)
    assert not some.may_reach("11.0.0.1", is_encrypted=False)


def sent(url: str, **options: Any) -> Outcome:
    """The outcome of a message to this URL."""
    sender = WebhookPublisher(WebhookEndpoint(url, SECRET), **{"timeout": 5, **options})
    (outcome,) = published(sender, [envelope()])
    sender.close()
    return outcome


def test_however_it_is_written() -> None:
    """An address of this machine is not connected to, and `check` refuses to start."""
    with endpoint(OK) as found:
        for host in THIS_MACHINE.split():
            url = found.url.replace("http://127.0.0.1", f"https://{host}")
            sender = WebhookPublisher(WebhookEndpoint(url, SECRET))
            (outcome,) = published(sender, [envelope()])
            assert isinstance(outcome, Unavailable), host
            assert "ForbiddenAddress" in outcome.reason, host
            with pytest.raises(UnsafeBroker, match="is not public; the option allow"):
                sender.check(30)
            sender.close()
        assert found.connections == 0


class Names:
    """Resolves one name to addresses of its own, another answer each time; the last one stays."""

    name = "hooks.example.org"

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = [*answers]
        self.asked: list[str] = []

    def __call__(self, host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        assert host == self.name
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]


def test_a_name_that_changes_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a check has seen, the address of each connection is looked at, and nobody resolves the name
    again after that."""
    names = Names(["8.8.8.8"], ["127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", names)
    with endpoint(OK) as found:
        url = found.url.replace("http://127.0.0.1", f"https://{names.name}")
        sender = WebhookPublisher(WebhookEndpoint(url, SECRET), timeout=5)
        sender.check(30)
        (outcome,) = published(sender, [envelope()])
        sender.close()
        assert isinstance(outcome, Unavailable)
        assert "has the address 127.0.0.1, which is not public" in outcome.reason
        assert found.connections == 0
    assert names.asked == [names.name] * 2


def test_only_the_addresses_that_may_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several addresses, those that may not be reached are left out, and the next one is tried if one does
    not answer. A name is resolved once for a connection."""
    names = Names(["10.0.0.1", "169.254.169.254", "127.0.0.2", "127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", names)
    with endpoint(OK) as found:
        url = found.url.replace("127.0.0.1", names.name)
        assert sent(url, allow=LOCAL) == Accepted()
        assert found.connections == 1
        assert isinstance(sent(url, allow=["10.9.9.9"]), Unavailable)
        assert found.posted[0].headers["host"].startswith(names.name)
    assert names.asked == [names.name] * 2


def test_an_address_of_ipv6() -> None:
    """It is written in brackets, as servers expect it."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    with endpoint(OK, host="::1") as found:
        assert sent(found.url, allow=["::1"]) == Accepted()
        assert found.url == f"http://{found.posted[0].headers['host']}/hooks"


def test_a_name_that_does_not_resolve(caplog: pytest.LogCaptureFixture) -> None:
    """Its messages wait, and `check` only says so."""
    sender = WebhookPublisher(WebhookEndpoint("https://nobody.invalid/", SECRET))
    sender.check(30)
    (outcome,) = published(sender, [envelope()])
    sender.close()
    assert isinstance(outcome, Unavailable)
    assert "does not resolve" in outcome.reason
    assert "not checked" in caplog.text


def test_certificates(tmp_path: Path) -> None:
    """One that nobody vouches for, or that is another host's, is refused before anything is sent."""
    certificate = certificates.write(tmp_path)
    trusting = ssl.create_default_context(cafile=certificate[0])
    with endpoint(OK, certificate=certificate) as found:
        assert sent(found.url, allow=LOCAL, tls=trusting) == Accepted()
        for url, options in (
            (found.url, {}),
            (found.url.replace("127.0.0.1", "localhost"), {"tls": trusting}),
        ):
            outcome = sent(url, allow=LOCAL, **options)
            assert isinstance(outcome, Unavailable), outcome
            assert "certificate verify failed" in outcome.reason.lower()
        assert len(found.posted) == 1
    careless = ssl.create_default_context()
    careless.check_hostname = False
    with pytest.raises(InvalidOption, match=r"^tls: expected a context that verifies"):
        sent(found.url, tls=careless)


def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not used: they would connect to addresses that nobody has checked."""
    with endpoint(OK) as proxy, endpoint(OK) as found:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert sent(found.url, allow=LOCAL) == Accepted()
        assert isinstance(sent("https://127.0.0.1:1/"), Unavailable)
        assert (proxy.connections, found.connections) == (0, 1)
