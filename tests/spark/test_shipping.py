"""The package sent with a job by the commands of docs/spark.md, to workers that have nothing but Python."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.on_servers import on
from tests.support.program import ROOT
from tests.support.spark.cluster import FRUGAL, SparkCluster, home
from tests.support.spark_jobs.payments import Target, check_report
from tests.support.wheels import build_wheel

pytest_plugins = ["tests.support.spark.fixtures"]
pytestmark = [pytest.mark.long, on("postgresql")]

PROGRAM = ROOT / "tests" / "support" / "spark" / "shipped_program.py"
INSTALL = 'environment/bin/pip install "inbox-outbox[spark,binary]"\n'
ROWS = range(2_000)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    return build_wheel(tmp_path_factory.mktemp("built"))


@pytest.fixture
def shell(cluster: SparkCluster, tmp_path: Path) -> "Shell":
    """A shell in a folder with the program, whose spark-submit finds the cluster."""
    return Shell(cluster, tmp_path)


class Shell:
    """Runs commands as a user does who has Spark, and whose Spark knows its cluster."""

    def __init__(self, cluster: SparkCluster, folder: Path) -> None:
        self.folder = folder
        shutil.copy(PROGRAM, folder / "load.py")
        options = f"{FRUGAL} {cluster.logging}"
        settings = {
            "spark.master": cluster.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": options,
            "spark.executor.extraJavaOptions": options,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "3",
            "spark.cores.max": "6",
            "spark.task.maxFailures": "1",
            "spark.ui.enabled": "false",
        }
        (folder / "conf").mkdir()
        lines = (f"{name} {value}\n" for name, value in settings.items())
        (folder / "conf" / "spark-defaults.conf").write_text("".join(lines))
        path = (str(home() / "bin"), str(Path(sys.executable).parent), os.environ["PATH"])
        others = {name: value for name, value in os.environ.items() if not name.startswith(("PY", "SPARK"))}
        mine = {"PATH": os.pathsep.join(path), "SPARK_CONF_DIR": str(folder / "conf"), "GZIP": "-1"}
        self._environment = {**others, **cluster.environment, **mine}

    def run(self, commands: str, **variables: Path) -> subprocess.CompletedProcess[str]:
        """Run commands; stop at the first that fails."""
        return subprocess.run(
            ["bash", "-ec", commands],
            cwd=self.folder,
            env={**self._environment, **{name: str(value) for name, value in variables.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # where Spark shows the driver's errors depends on what they are
            text=True,
            timeout=400,
            check=False,
        )

    def submit(self, commands: str, target: Target, **variables: Path) -> dict[str, Any]:
        """Run commands whose last one submits the program, and return what it has written."""
        done = self.run(f"{commands} '{target.url}' out.json", **variables)
        assert done.returncode == 0, done.stdout
        written: dict[str, Any] = json.loads((self.folder / "out.json").read_text())
        return written


def commands(last: str) -> str:
    """The block of commands of the page that ends with this line."""
    page = (ROOT / "docs" / "spark.md").read_text()
    (block,) = (
        each for each in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if each.endswith(f"{last}\n")
    )
    return str(block).rstrip()


def copy(requirement: Requirement, site: Path, done: set[str], without: Iterable[str]) -> None:
    """Copy what is installed for a requirement of the package, and for those of its requirements."""
    found = distribution(requirement.name)
    extras = ("", *requirement.extras)
    for text in found.requires or ():
        each = Requirement(text)
        wanted = each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
        if wanted and each.name not in without and str(each) not in done:
            done.add(str(each))
            copy(each, site, done, without)
    for file in found.files or ():
        if requirement.name != "inbox-outbox" and ".." not in file.parts and file.suffix != ".pyc":
            place = site / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(found.locate_file(file)), place)


def test_an_archive_and_a_job_that_is_killed_half_way(
    cluster: SparkCluster, shell: Shell, target: Target, wheel: Path
) -> None:
    """The archive of the page brings everything. A job that lost an executor to kill -9 leaves whole
    partitions; the same job again writes the others, and no payment twice. `format("inbox")` finds the
    package, too."""
    last = "spark-submit --archives environment.tar.gz#environment load.py"
    before, after = commands(last).split(INSTALL)
    assert shell.run(before).returncode == 0
    site = next((shell.folder / "environment").glob("lib/python*/site-packages"))
    copy(Requirement("inbox-outbox[spark,binary]"), site, set(), without=["pyspark"])
    installed = shell.run(f"environment/bin/pip install --no-deps --no-index {wheel}")
    assert installed.returncode == 0, installed.stdout

    killed = shell.run(f"{after} '{target.url}' out.json kill")
    assert killed.returncode != 0
    assert "ExecutorLostFailure" in killed.stdout, killed.stdout
    assert 0 < len(target.applied()) < len(ROWS)
    written = shell.submit("\n".join(after.splitlines()[-2:]), target)
    target.check(ROWS)
    check_report(written["report"], new=len(ROWS))
    assert written["report"]["replayed"] > 0
    assert written["driver"].startswith(str(site))
    assert all(str(cluster.folder / "worker-") in place for place in written["executors"])


def test_a_zip_for_workers_that_have_the_dependencies(shell: Shell, target: Target, wheel: Path) -> None:
    """The wheel under the name of a zip is enough where the dependencies are installed. Under its own name
    Spark ignores it on the executors, and the error says so, as it does if a worker lacks the dependencies. A
    standalone cluster runs no driver in Python."""
    shutil.copy(wheel, shell.folder)
    last = "spark-submit --py-files inbox_outbox.zip load.py"
    copied, submitted = commands(last).splitlines()[-2:]
    venv.create(shell.folder / "there")
    python = shell.folder / "there" / "bin" / "python"
    site = next((shell.folder / "there").glob("lib/python*/site-packages"))
    # An editable installation of this package in that folder is not found.
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    assert shell.run(copied).returncode == 0

    written = shell.submit(submitted, target, PYSPARK_PYTHON=python)
    target.check(ROWS)
    check_report(written["report"], new=len(ROWS))
    assert "inbox_outbox.zip" in written["driver"]
    assert all("inbox_outbox.zip" in place for place in written["executors"])

    named = submitted.replace("inbox_outbox.zip", wheel.name)
    refused = shell.run(f"{named} '{target.url}' out.json", PYSPARK_PYTHON=python)
    assert refused.returncode != 0
    assert "this executor has none" in refused.stdout, refused.stdout
    assert "only if it is named .zip" in refused.stdout

    venv.create(shell.folder / "bare")
    bare = shell.folder / "bare" / "bin" / "python"
    lacking = shell.run(
        f"{submitted} '{target.url}' out.json", PYSPARK_DRIVER_PYTHON=python, PYSPARK_PYTHON=bare
    )
    assert lacking.returncode != 0
    assert "pyarrow" in lacking.stdout, lacking.stdout

    refused = shell.run(submitted.replace("--py-files", "--deploy-mode cluster --py-files"))
    assert "not supported for python applications on standalone clusters" in refused.stdout
