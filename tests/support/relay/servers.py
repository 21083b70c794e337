"""Fewer servers for tests of relays that take long: MySQL is left out, where a relay runs MariaDB's code."""

import pytest

from tests import servers
from tests.conftest import _server
from tests.servers import Server

NAMES = tuple(name for name in servers.NAMES if name != "mysql")


@pytest.fixture(params=NAMES, scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    """Each of these servers in turn; a module that imports this has its databases on them only."""
    return _server(request.param)
