"""`inbox-outbox outbox drain` to a real endpoint, and the code of the page about webhooks."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from inbox import Delivery
from inbox.webhook import WebhookReceiver
from tests.support.brokers.consumers import taking
from tests.support.brokers.webhook_program import SECRET
from tests.support.brokers.webhook_serving import serving
from tests.support.cli import in_this_process, inbox_outbox
from tests.support.database import Database
from tests.support.documented_code import TABLES as INBOX
from tests.support.documented_code import blocks, reader, rows
from tests.support.outbox_publishers import TABLES, count, publish
from tests.support.program import ROOT

PAGE = ROOT / "docs" / "webhooks.md"
NETWORK = ["--allow-network", "127.0.0.0/8"]


@pytest.mark.parametrize("is_file", [True, pytest.param(False, marks=pytest.mark.long)])
def test_drain(is_file: bool, postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of HTTP is an endpoint; its secret is in a file or in the environment."""
    seen: list[Delivery] = []
    publish(postgres.engine(), "a1", "a2")
    secrets = f"{SECRET}\n"
    (tmp_path / "secret").write_text(secrets)
    given = ["--secret-file", str(tmp_path / "secret")] if is_file else []
    if not is_file:
        monkeypatch.setenv("INBOX_OUTBOX_WEBHOOK_SECRETS", secrets)
    with serving(WebhookReceiver(taking(seen.append), SECRET)) as to:
        arguments = ("outbox", "drain", "--to", to, *given, *NETWORK, "--json")
        done = inbox_outbox(*arguments, url=postgres.url)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["sent"], found["left"]) == (2, 0)
    assert SECRET not in done.stdout + done.stderr
    assert sorted(each.payload for each in seen) == [b"a1", b"a2"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--to", "https://me:s3cr3t@example.org/"], "--to: expected https://host/path"),
        (["--to", "https://example.org/s3cr3t"], "--secret-file or INBOX_OUTBOX_WEBHOOK_SECRETS: expected"),
        (["--to", "https://example.org/s3cr3t", "--secret-file", "WRONG"], "SECRETS: expected whsec_"),
        (
            ["--to", "https://example.org/s3cr3t", "--secret-file", "none"],
            "--secret-file='none': No such file",
        ),
        (
            ["--to", "http://example.org/s3cr3t", "--secret-file", "RIGHT"],
            "--to: http://example.org has no TLS",
        ),
        (["--to", "https://localhost/s3cr3t", "--secret-file", "RIGHT"], "is not public"),
        (["--to", "https://h/", "--secret-file", "RIGHT", "--allow-network", "x"], "--allow-network=['x']"),
        (["--to", "https://h/", "--secret-file", "RIGHT", "--exchange", "e"], "only RabbitMQ has exchanges"),
        (["--to", "sqs://host", "--secret-file", "RIGHT"], "--secret-file: only webhooks have it"),
        (["--to", "amqp://host", *NETWORK], "--allow-network: only webhooks have it"),
    ],
)
def test_wrong_arguments(arguments: Sequence[str], why: str, postgres: Database, tmp_path: Path) -> None:
    """A wrong argument is reported in one line that names the option, without a secret or the path, and
    nothing is sent."""
    files = {"RIGHT": tmp_path / "right", "WRONG": tmp_path / "wrong"}
    files["RIGHT"].write_text(SECRET)
    files["WRONG"].write_text("whsec_s3cr3t")
    publish(postgres.engine(), "a1")
    given = [str(files.get(each, each)) for each in arguments]
    url = postgres.url.render_as_string(hide_password=False)
    done = in_this_process("outbox", "drain", *given, url=url)
    assert done.returncode != 0
    assert why in " ".join(done.stderr.split())
    assert "s3cr3t" not in done.stdout + done.stderr
    assert SECRET[6:] not in done.stdout + done.stderr
    assert count(postgres.engine(), TABLES.message) == 1


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One code block makes a receiver, and the next one publishes a message and sends it there."""
    monkeypatch.chdir(tmp_path)
    names = reader(tmp_path)
    receive, send = blocks(PAGE)
    receive.run(names)
    with serving(names["receiver"]) as url:
        addresses = {
            '"https://billing.example.com/hooks/orders"': f'"{url}"',
            '{"orders": billing})': "{\"orders\": billing}, allow=['127.0.0.0/8'])",
        }
        send.run(names, "webhook", addresses)
        names["publisher"].close()
    assert not rows(names["engine"], INBOX.outbox.message)
    assert rows(names["engine"], INBOX.message) == 1
