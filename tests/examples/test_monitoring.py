"""The alerts and the dashboard fit each other, the runbook, and what is really exported."""

import json
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from inbox import Event, EventKind, Inbox, SqlStore, StatusInbox, partitions, purge, set_policy
from inbox.otel import OtelEvents
from inbox_outbox.metrics import OverviewGauges
from inbox_outbox.prometheus import PrometheusMetrics
from outbox import Refused
from tests.servers import Missing
from tests.support.cli import in_this_process
from tests.support.database import Database
from tests.support.outbox_publishers import Recorder, publish, relay
from tests.support.present import present
from tests.support.program import ROOT

FOLDER = ROOT / "examples" / "monitoring"
RUNBOOK = (ROOT / "docs" / "alerts.md").read_text()
OURS = re.compile(r"\b(?:db|inbox|messaging|outbox)_\w+")
GROUPS = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
ALERTS = [each for group in GROUPS for each in group["rules"]]
BOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
QUERIES = [each["expr"] for panel in BOARD["panels"] for each in panel.get("targets", [])]


def promtool(*arguments: str, folder: Path = FOLDER) -> None:
    """Run promtool, which must succeed."""
    program = shutil.which("promtool") or Missing("no promtool on the PATH (Debian's package prometheus)")
    done = subprocess.run(
        [present("promtool", program), *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_fire_when_they_should() -> None:
    """With the numbers in rules_test.yml, each alert fires where something is wrong, and none where not."""
    promtool("check", "rules", "rules.yml")
    promtool("test", "rules", "rules_test.yml")
    tried = (FOLDER / "rules_test.yml").read_text()
    assert [each["alert"] for each in ALERTS if f'alertname="{each["alert"]}"' not in tried] == []


def test_prometheus_understands_the_dashboard(tmp_path: Path) -> None:
    """Each query of the dashboard is a valid expression."""
    assert len(QUERIES) > 20
    plain = [each.replace("$__rate_interval", "5m").replace("$job", "shop") for each in QUERIES]
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(plain)]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", "queries.yml", folder=tmp_path)


def exported(database: Database) -> tuple[set[str], set[str]]:
    """The names of all metrics and of their labels, of a program that does everything once."""
    engine, metrics = database.engine(), PrometheusMetrics()
    events = OtelEvents(system="rabbitmq", meter_provider=metrics.provider)
    OverviewGauges({"shop": engine}, meter_provider=metrics.provider)
    publish(engine, "a1", "b1")
    relay(engine, Recorder({"b1": [Refused("no")]}), on_event=events)
    publish(engine, "c1")
    with Inbox("billing", on_event=events).transaction(engine, key="a"):
        pass
    with StatusInbox("orders", store=SqlStore(engine), on_event=events).claim("x") as claim:
        claim.step("call", lambda: 1)
    purge(engine)
    set_policy(engine, "mail", mode="exactly-once", key_time="uuid7")
    partitions(engine, "mail", ahead=timedelta(days=2))
    events(Event(kind=EventKind.PURGED, consumer="billing", count=1))
    text = metrics()[0].decode()
    names = set(re.findall(r"^(\w+)(?:\{| )", text, re.MULTILINE))
    return names, set(re.findall(r'[{,](\w+)="', text))


def test_what_is_read_is_exported(postgres: Database) -> None:
    """Each metric and each label in an alert or in the dashboard is exported, and every gauge is shown."""
    names, labels = exported(postgres)
    read = {name for text in [*QUERIES, *(each["expr"] for each in ALERTS)] for name in OURS.findall(text)}
    assert sorted(read - names - labels) == []
    by = {name for text in [*QUERIES, *(each["expr"] for each in ALERTS)] for name in _labels_in(text)}
    assert sorted(by - labels - {"job"}) == []
    gauges = {name for name in names if name.startswith(("db_", "outbox_", "inbox_"))}
    shown = {name for text in QUERIES for name in OURS.findall(text)}
    left = {re.sub(r"_(bucket|count|sum)$", "", name) for name in gauges - shown}
    assert left - {re.sub(r"_bucket$", "", name) for name in shown} == {"inbox_step_duration_seconds"}


def _labels_in(query: str) -> list[str]:
    grouped = ",".join(re.findall(r"\bby \(([^)]*)\)", query)).replace(" ", "").split(",")
    return [each for each in [*grouped, *re.findall(r'(\w+)(?:=|!=|=~|!~)"', query)] if each]


def sections() -> dict[str, str]:
    """The runbook's sections."""
    found = re.split(r"^## (\w+)\n", RUNBOOK, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def test_every_alert_has_a_section() -> None:
    """Each alert names its section of the runbook, which begins with a command; there are no others."""
    assert list(sections()) == [each["alert"] for each in ALERTS]
    for each in ALERTS:
        assert each["annotations"]["runbook"] == f"docs/alerts.md#{each['alert'].lower()}"
        assert each["labels"]["severity"] in ("page", "ticket")
        assert sections()[each["alert"]].startswith("\n```sh\n")


def test_the_commands_of_the_runbook_run(postgres: Database) -> None:
    """Each section's first command can be typed as it is."""
    postgres.engine()
    url = postgres.url.render_as_string(hide_password=False)
    first = {each.split("\n")[2] for each in sections().values()}
    ours = sorted(each.removeprefix("inbox-outbox ") for each in first if each.startswith("inbox-outbox "))
    assert len(ours) > 8
    for command in ours:
        done = in_this_process(*command.split(), url=url)
        assert (done.returncode, done.stderr) == (0, ""), command
