"""`outbox relay --listen`, `metrics` and `--log-format`, as systemd, Kubernetes and Prometheus see them."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from examples.embedded_postgres import free_port
from tests.relay.test_probes import asked
from tests.support.cli import error, in_this_process, line
from tests.support.database import Database
from tests.support.outbox_publishers import publish
from tests.support.processes import wait_until
from tests.support.program import ROOT


@contextmanager
def started(*arguments: str, url: Any = None, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A command that logs JSON."""
    command = line("--log-format", "json", *arguments, url=url)
    env = os.environ | environment
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def place_of(process: subprocess.Popen[str]) -> str:
    """Where the command listens, as its log says."""
    assert process.stderr is not None
    for text in process.stderr:
        if found := re.fullmatch(r"listens at (http://.*)", json.loads(text)["message"]):
            return found[1]
    raise AssertionError("it has ended")


def test_a_relay_under_systemd(engine: Engine, postgres: Database, tmp_path: Path) -> None:
    """While its broker is away it is live and ready, and names the topic; its metrics say what waits. Stopped
    by SIGSTOP, systemd hears nothing; on SIGTERM it says that it stops, and ends with exit code 0."""
    publish(engine, "a1", topic="mail")
    to = f"amqp://guest:s3cr3t@127.0.0.1:{free_port()}"
    arguments = "outbox", "relay", "--to", to, "--poll", "1s", "--listen", "127.0.0.1:0"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "500000"}
        with started(*arguments, url=postgres.url, **environment) as process:
            place = place_of(process)
            until(systemd, "READY=1")
            wait_until(lambda: "topic 'mail' is rejected" in asked(place, "/ready")[1])
            status, body = asked(place, "/ready")
            assert (status, "s3cr3t" in body) == (200, False)
            _, metrics = asked(place, "/metrics")
            assert 'outbox_messages{state="waiting"} 1.0' in metrics
            assert "outbox_relays_live 1.0" in metrics
            assert re.search(r'messaging_client_sent_messages_total\{.*messaging_system="rabbitmq"', metrics)
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)  # it has stopped
            heard_before(systemd)
            systemd.settimeout(0.7)
            with pytest.raises(TimeoutError):
                systemd.recv(4_096)
            process.send_signal(signal.SIGCONT)
            until(systemd, "WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            until(systemd, "STOPPING=1")
            _, err = process.communicate(timeout=60)
        assert process.returncode == 0
    lines = [json.loads(each) for each in err.splitlines()]
    assert lines[-1]["message"].endswith("has stopped")
    assert {*lines[-1]} == {"time", "level", "logger", "message"}
    assert "s3cr3t" not in err


def until(link: socket.socket, text: str) -> None:
    """Wait for a datagram."""
    link.settimeout(30)
    while link.recv(4_096).decode() != text:
        pass


def heard_before(link: socket.socket) -> None:
    """Read what has arrived."""
    link.setblocking(False)
    with suppress(BlockingIOError):
        while link.recv(4_096):
            pass


GONE = "postgresql://ann:hidden@127.0.0.1:1/gone"


def test_metrics_alone(engine: Engine, postgres: Database) -> None:
    """`metrics` exports the overviews of some databases until it is told to end."""
    publish(engine, "a1", topic="mail")
    shop, gone = f"shop={postgres.url.render_as_string(hide_password=False)}", f"gone={GONE}"
    with started("metrics", "--listen", "127.0.0.1:0", "--url", shop, "--url", gone) as process:
        place = place_of(process)
        assert asked(place, "/live")[0] == asked(place, "/ready")[0] == 200
        found = asked(place, "/metrics")[1]
        assert 'outbox_messages{database="shop",state="pending"} 1.0' in found
        assert 'db_up{database="gone"} 0.0' in found
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_an_address_that_cannot_be_used(postgres: Database) -> None:
    """It is refused before anything is done, in one line; with JSON, that is one object."""
    url = postgres.url.render_as_string(hide_password=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = in_this_process("metrics", "--listen", listen, url=url)
        assert done.returncode == 2
        assert error(done).startswith(f"--listen='{listen}': ")
    done = in_this_process("--log-format", "json", "metrics", "--listen", "x", url=url)
    (only,) = done.stderr.splitlines()
    said = json.loads(only)
    assert said["message"] == "--listen='x': expected HOST:PORT, such as 127.0.0.1:8080"
    assert (said["level"], done.returncode) == ("ERROR", 2)
