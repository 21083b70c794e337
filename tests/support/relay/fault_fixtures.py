"""The fixture of tests in which random faults happen; a test module names this one as its plugin."""

from collections.abc import Iterator

import pytest

from examples.embedded_postgres import EmbeddedPostgres

from .faults import Run


@pytest.fixture
def run(private_postgres: EmbeddedPostgres) -> Iterator[Run]:
    """A run whose PostgreSQL is killed, too."""
    run = Run(private_postgres)
    yield run
    run.engine.dispose()
