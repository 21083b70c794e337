"""What relays say about their health, over HTTP and to systemd."""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from sqlalchemy import Engine

from inbox.errors import InvalidOption
from inbox.probes import Probe, serve_probes, systemd_watchdog
from outbox import Envelope, Outcome, Relay, Unavailable
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outages import closed
from tests.support.outbox_publishers import Recorder, publish
from tests.support.processes import wait_until
from tests.support.relay.crashes import running


def asked(place: str, path: str) -> tuple[int, Any]:
    """The status and the body of an answer."""
    try:
        with urlopen(place + path, timeout=10) as answer:  # noqa: S310 - our own server
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@on("sqlite")
def test_a_relay_from_begin_to_end(engine: Engine) -> None:
    """It is ready while it runs, also if the broker rejects a topic, which the answer names without its
    password; afterwards it is neither live nor ready."""
    publish(engine, "a1", topic="mail")
    full = Unavailable("amqp://shop:s3cr3t@broker is full", 3_600.0)
    relay = Relay(engine, Recorder({"a1": [full] * 100}), name="one")
    says = "it has not begun", "it is not in the group of relays"
    assert relay.probe() == Probe("relay one", is_live=True, is_ready=False, says=says)
    rejected = "topic 'mail' is rejected: amqp://shop:***@broker is full"
    with serve_probes("127.0.0.1:0", relay) as place:
        assert asked(place, "/ready")[0] == 503
        with running(relay):
            wait_until(lambda: asked(place, "/ready")[0] == 200 and rejected in relay.probe().says)
            _, body = asked(place, "/live")
            assert json.loads(body) == [
                {"name": "relay one", "live": True, "ready": True, "says": [rejected]}
            ]
            assert asked(place, "/metrics") == (404, "ask for /live, /ready; this program has no metrics\n")
        assert asked(place, "/live")[0] == asked(place, "/ready")[0] == 503
    assert relay.probe().says[:2] == ("it has ended", "it is stopping")


@on("sqlite")
def test_a_loop_that_hangs(engine: Engine) -> None:
    """A relay whose loop does not turn for twice its lease is not live; once it goes on, it is."""
    publish(engine, "a1")
    goes_on = threading.Event()

    class Hanging(Recorder):
        concurrent = False  # so the loop itself calls it

        def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
            goes_on.wait()
            return super().send(batch)

    relay = Relay(engine, Hanging(), lease=1)
    with running(relay):
        try:
            wait_until(lambda: not relay.probe().is_live)
            assert any("its loop has not turned for 2 s" in each for each in relay.probe().says)
        finally:
            goes_on.set()
        wait_until(lambda: relay.probe().is_ready)


def test_a_database_that_is_away(postgres: Database) -> None:
    """Without it the relay stays live and is not ready, and says why; it recovers by itself."""
    relay = Relay(postgres.engine(), Recorder(), poll=0.1)
    with running(relay):
        wait_until(lambda: relay.probe().is_ready)
        with closed(postgres):
            wait_until(lambda: not relay.probe().is_ready)
            probe = relay.probe()
            assert probe.is_live
            assert probe.says[0].startswith("the database at postgresql://")
        wait_until(lambda: relay.probe().is_ready)


@pytest.mark.parametrize(
    "listen", ["", "8080", ":8080", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "no.such.host.invalid:0"]
)
def test_an_address_that_cannot_be_used(listen: str) -> None:
    """The error names the option and its value."""
    with pytest.raises(InvalidOption, match=r"^listen="), serve_probes(listen):
        pass


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """A socket as systemd makes it, for a unit with a watchdog; the function returns the next datagram."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        yield lambda: server.recv(4_096).decode()


class Part:
    """A relay or a consumer that is what the test says."""

    def __init__(self) -> None:
        self.says = Probe("part", is_live=True, is_ready=False, says=("it has not begun",))

    def probe(self) -> Probe:
        """Its health."""
        return self.says


def test_what_systemd_is_told(systemd: Callable[[], str]) -> None:
    """It is told once that the service is ready, that it is stopping and what it says, and again and again
    that it is live, but not while it is not."""
    part = Part()

    def until(text: str) -> list[str]:
        heard: list[str] = []
        while not heard or heard[-1] != text:
            heard.append(systemd())
        return heard[:-1]

    with systemd_watchdog(part):
        assert set(until("STATUS=it has not begun")) <= {"WATCHDOG=1"}
        part.says = Probe("part", is_live=True, is_ready=True)
        assert set(until("READY=1")) <= {"WATCHDOG=1"}
        until("STATUS=working")
        part.says = Probe("part", is_live=False, is_ready=False, is_stopping=True, says=("it has ended",))
        until("STOPPING=1")
        assert until("STATUS=it has ended") == []
    assert systemd() == "STOPPING=1"
