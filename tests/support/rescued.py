"""A plugin of pytest: a run of what failed before (`--last-failed`) names the tests that pass now.

`make test` runs what failed once more, and is green if it passes then. Such a test has a race, or the code
has.
"""

import pytest

FAILED_BEFORE = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Remember what failed before, which pytest forgets at the end of the run."""
    is_second = config.getoption("lf", default=False) and config.cache is not None
    config.stash[FAILED_BEFORE] = set(config.cache.get("cache/lastfailed", {})) if is_second else set()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the tests that passed only now."""
    passed = {report.nodeid for report in terminalreporter.stats.get("passed", ())}
    rescued = sorted(name for name in config.stash[FAILED_BEFORE] if name in passed)
    if rescued:
        word = "test" if len(rescued) == 1 else "tests"
        terminalreporter.write_line(f"{len(rescued)} {word} passed only when run once more:", yellow=True)
        for name in rescued:
            terminalreporter.write_line(f"  {name}")
