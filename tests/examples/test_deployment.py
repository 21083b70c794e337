"""What systemd, Kubernetes and Docker start is there, and what they ask is answered."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from inbox_outbox._operating.passwords import Passwords
from outbox.rabbitmq import RabbitPublisher
from tests.support.cli import error, in_this_process
from tests.support.database import Database
from tests.support.program import ROOT

FOLDER = ROOT / "examples" / "deployment"
UNIT = FOLDER / "inbox-outbox-relay.service"
DEPLOYMENT, PURGE = yaml.safe_load_all((FOLDER / "relay.yaml").read_text())
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
RELAY: dict[str, Any] = POD["containers"][0]


def settings() -> dict[str, str]:
    """The last value of each setting of the unit."""
    lines = [line.partition("=") for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#"]
    return {name: value for name, _, value in lines}


def check(command: list[str], database: Database) -> None:
    """A relay's command has valid options, and gets as far as its broker."""
    assert Path(command[0]).name == "inbox-outbox"
    url = database.url.render_as_string(hide_password=False)
    done = in_this_process(*command[1:], "--to", "nats://", url=url)
    assert json.loads(done.stderr)["message"].startswith("--to: expected amqp")


def test_the_unit(postgres: Database, tmp_path: Path) -> None:
    """systemd accepts it; its command is one that tells systemd how it is."""
    assert settings()["Type"] == "notify"
    assert int(settings()["WatchdogSec"]) >= 60
    check(shlex.split(settings()["ExecStart"]), postgres)
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not on the PATH")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/inbox-outbox/bin/inbox-outbox", "/bin/true"))
    done = subprocess.run([program, "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manifest(postgres: Database) -> None:
    """Its probes ask what the relay answers, where it listens, and it has time to finish its batch."""
    check(RELAY["command"], postgres)
    (port,) = RELAY["ports"]
    assert f"0.0.0.0:{port['containerPort']}" in RELAY["command"]
    paths = {name: RELAY[name]["httpGet"]["path"] for name in RELAY if name.endswith("Probe")}
    assert paths == {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/ready"}
    assert {RELAY[name]["httpGet"]["port"] for name in paths} == {port["name"]}
    annotations = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels
    assert POD["terminationGracePeriodSeconds"] > RabbitPublisher("amqp://localhost").timeout


def test_the_purge(postgres: Database) -> None:
    """Its command runs."""
    postgres.engine()
    (purge,) = PURGE["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    url = postgres.url.render_as_string(hide_password=False)
    assert in_this_process(*purge["command"][1:], url=url).returncode == 0


def test_the_page_of_compose(tmp_path: Path) -> None:
    """The password in the comment is that of the user; the page's command has valid options, and gets as far
    as its file."""
    text = (ROOT / "docker-compose.yml").read_text()
    page: dict[str, Any] = yaml.safe_load(text)["services"]["web"]
    [(user, password)] = re.findall(r"user (\S+), password (\S+)\.\n", text)
    users = tmp_path / "users"
    users.write_text(page["environment"]["USERS"])
    assert Passwords.read(users).are_right(user, password)
    command: list[str] = page["command"]
    command[command.index("--password-file") + 1] = str(tmp_path / "none")
    assert "none': No such file" in error(in_this_process("web", *command, url="sqlite:///nowhere.db"))
