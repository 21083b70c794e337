"""The fixture of the tests of Redis Streams.

A test module names this one as its plugin.
"""

from collections.abc import Iterator

import pytest

from tests import servers
from tests.support.present import present

from .redis_groups import Streams


@pytest.fixture
def streams() -> Iterator[Streams]:
    """Streams of the test's own on the server that the tests share."""
    with Streams(present("redis", servers.find_redis()).url) as found:
        yield found
