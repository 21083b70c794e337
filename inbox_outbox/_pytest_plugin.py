"""The plugin `inbox-outbox` for pytest: the fixture `exactly_once`, the options that go with it, and the
fixtures of `inbox_outbox.testing`.

pytest loads it in every run, so it imports nothing before a test asks for it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from inbox_outbox.faults import FaultReport

_NAME = "exactly_once"
pytest_plugins = ["inbox_outbox.testing._fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("inbox-outbox", "exactly-once tests")
    group.addoption("--exactly-once", action="store_true", help="run tests that put a handler under faults")
    group.addoption("--exactly-once-seed", type=int, metavar="N", help="the seed of all of them")
    group.addoption("--exactly-once-json", type=Path, metavar="FILE", help="write all reports to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Collect the reports, where tests are not run for another process."""
    if config.getoption(_NAME) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reports(config.getoption("exactly_once_json")), "inbox-outbox reports")


@pytest.fixture
def exactly_once(request: pytest.FixtureRequest) -> Callable[..., "FaultReport"]:
    """`inbox_outbox.faults.exactly_once`, which fails the test if an effect was doubled or lost. The test is
    skipped without `--exactly-once`."""
    if not request.config.getoption(_NAME):
        pytest.skip("it runs with --exactly-once")
    from inbox_outbox import faults

    def run(
        handler: Callable[[Any], Any] | str, messages: Callable[[int], Any], **options: Any
    ) -> "FaultReport":
        if (seed := request.config.getoption("exactly_once_seed")) is not None:
            options["seed"] = seed
        report = faults.exactly_once(handler, messages, **options)
        request.node.user_properties.append((_NAME, report.as_json()))
        if not report.is_exactly_once:
            pytest.fail(f"not exactly once\n\n{report}", pytrace=False)
        return report

    return run


class _Reports:
    """The reports of a run, whichever process they come from."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test's reports travel with its result."""
        if report.when == "call":
            import json

            texts = [text for name, text in report.user_properties if name == _NAME]
            self._reports += [{"test": report.nodeid, **json.loads(str(text))} for text in texts]

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        if self._file is not None:
            import json

            self._file.write_text(json.dumps(self._reports, indent=1) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line for each report; the table of a handler that failed is in its test's failure."""
        if self._reports:
            terminalreporter.section("exactly once")
        for report in self._reports:
            found, reasons = len(report["violations"]), dict[str, list[str]]()
            for name, reason in report["not_tried"].items():
                reasons.setdefault(reason, []).append(name)
            not_tried = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
            terminalreporter.line(
                f"{report['handler']} on {report['database']}, seed {report['seed']}: "
                f"{sum(report['tried'].values())} faults, {found or 'no'} violation{'s' * (found != 1)}; "
                f"not tried: {not_tried or 'none'}"
            )
