"""The benchmarks run, and show what they have measured."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests import servers
from tests.support.program import ROOT
from tests.support.spark import cluster as spark_cluster

BROKERS = {
    "kafka": "kafka",
    "nats": "nats",
    "nats_publisher": "nats",
    "rabbitmq": "rabbitmq",
    "redis": "redis",
    "redis_publisher": "redis",
    "rocketmq": "rocketmq",
    "sqs": "elasticmq",
    "sqs_publisher": "elasticmq",
}
"""What the broker's benchmarks need."""


@pytest.mark.long
@pytest.mark.parametrize("program", ["inbox", "status", "outbox", "brokers", "scale", "spark_writer"])
def test_every_part_prints_its_results(program: str, tmp_path: Path) -> None:
    """Each part of each program prints a table of numbers, and those that lack another library or a server
    the reason; the files have the results of all the others."""
    if program == "spark_writer" and (missing := spark_cluster.missing()) is not None:
        assert not servers.is_required("spark")
        pytest.skip(f"spark: {missing.reason}")
    picture, file = tmp_path / "ratios.png", tmp_path / "found.json"
    arguments = ["--tiny", "--png", str(picture), "--json", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{program}", *arguments, *["--outage"][: program == "outbox"]],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    names = [*import_module(f"benchmarks.{program}").BENCHMARKS]
    printed = re.split(r"^─+ (\S+) ─+$", done.stdout, flags=re.MULTILINE)[1:]
    assert printed[::2] == names
    left_out = dict(re.findall(r"^(\S+) was left out: (.+)$", done.stdout, re.MULTILINE))
    for name, shown in zip(names, printed[1::2], strict=True):
        assert name in left_out or re.search(r"^│ .* [\d,.]+ +│", shown, re.MULTILINE), done.stdout
    assert list(json.loads(file.read_text())["reports"]) == [name for name in names if name not in left_out]
    assert picture.stat().st_size
    assert not [name for name in left_out if name in BROKERS and servers.is_required(BROKERS[name])]
    if left_out:
        pytest.skip(", ".join(f"{name}: {reason}" for name, reason in left_out.items()))


@pytest.mark.long
def test_the_comparison_finds_faults(tmp_path: Path) -> None:
    """A killed worker and two deliveries at once double and lose what the naive ways handle, and nothing of
    what ours promise."""
    if shutil.which("redis-server") is None:
        assert not servers.is_required("redis")
        pytest.skip("redis-server is not installed")
    once = {"before": 1, "after": 1, "unacknowledged": 1, "two": 1}
    expected = {
        "look-up": once | {"two": 2},
        "unique-key": once,
        "redis-lock": once | {"before": 0, "unacknowledged": 2},
        "inbox": once,
        "inbox-transact": once,
        "inbox-step": once | {"after": 2},
    }
    file = tmp_path / "found.json"
    ways = [f"--only={way}" for way in expected]
    command = [sys.executable, "-m", "benchmarks.compare", *ways, "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, check=False)
    assert json.loads(file.read_text()) == expected
    assert done.returncode == 0


def test_a_part_that_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A part that fails is one line with its name and the error. The other parts print their results and
    write them, and the exit code is 1, as it is if a target is missed; but not where sizes are tiny."""
    from benchmarks import _command
    from benchmarks._measure import Grid, LeftOut, Report, figure

    def fail(_: None) -> Report:
        raise ValueError("no such name\nat line 1")

    def leave_out(_: None) -> Report:
        raise LeftOut("no server")

    parts: _command.Benchmarks[None] = {
        "first": lambda _: Report(grids=[Grid("speed", ["rows"], [["1,234"]])]),
        "second": fail,
        "third": leave_out,
        "last": lambda _: Report([figure("ratio", [0.5], at_least=1)]),
    }

    def measure(*arguments: str) -> int:
        options = _command.parser("parts", "Parts.", parts).parse_args(arguments)
        return _command.measure(options, parts, None, _command.progress(), "Parts", "here")

    file = tmp_path / "found.json"
    assert measure("--json", str(file)) == measure("--tiny", "--only", "second") == 1
    lines = capsys.readouterr().out.splitlines()
    assert "second has failed: ValueError: no such name" in lines
    assert "third was left out: no server" in lines
    assert [line for line in lines if "1,234" in line or "missed" in line]
    assert list(json.loads(file.read_text())["reports"]) == ["first", "last"]
    assert measure("--only", "last") == 1
    assert measure("--tiny", "--only", "last") == measure("--only", "first", "--only", "third") == 0
