"""Fixtures: a real database for each test, and what the run's header says about the servers."""

import gc
import logging
import re
import signal
import zlib
from collections.abc import Generator, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from redis import RedisError
from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from examples.embedded_postgres import EmbeddedPostgres
from inbox._status_mode.stores import Store
from tests import servers
from tests.servers import Missing, Server, rabbitmq
from tests.servers.redis import LocalRedis, program
from tests.support.database import Database, make_tables
from tests.support.present import present
from tests.support.status_mode import stores as status_stores
from tests.support.status_mode.stores import Place

from .support import forked

pytest_plugins = ["tests.support.rescued"]
GROUPS = {
    "spark cluster": ("spark/test_failures", "spark/test_shipping", "spark/test_streaming"),
    "galera": ("deployment/test_galera",),
    "kafka": (
        "brokers/test_consumer_log",
        "brokers/test_kafka",
        "brokers/test_redrive",
        "cli/test_cli_relay",
        "project/test_documented_code",
        "project/test_events_spans",
        "relay/test_router",
    ),
    "rabbitmq": ("brokers/test_rabbit", "examples/test_order_chain"),
    "rocketmq": ("brokers/test_rocketmq", "examples/test_rocketmq_dedup"),
    "elasticmq": ("brokers/test_sqs",),
    "spark session": (
        "spark/test_dataframes",
        "spark/test_documented_code",
        "spark/test_types_from_spark",
    ),
}
"""Files that share what takes seconds to start: where processes share the tests, one of them runs a group."""

LONG_FILES = (
    "project/test_benchmarks",
    "brokers/test_broken",
    "relay/test_leases",
    "relay/test_bucket_model",
    "relay/test_faults",
    "status_mode/test_locked",
    "status_mode/test_async_leases",
    "migrations/test_migration",
    "status_mode/test_processes",
    "exactly_once/test_bounded_wait",
    "examples/test_demo",
    "status_mode/test_ends",
    "migrations/test_own_alembic",
    "faults/test_handlers",
    "relay/test_share",
    "examples/test_order_flow",
    "relay/test_wake",
    "status_mode/test_hung",
    "spark/test_inbox",
    "exactly_once/test_server_limits",
    "exactly_once/test_whose_fault",
    "status_mode/test_heartbeat",
    "status_mode/test_max_runtime",
    "listening/test_listener_stop",
    "exactly_once/test_concurrency",
    "spark/test_examples",
    "spark/test_ledger",
    "relay/test_run",
    "deployment/test_rolling",
    "deployment/test_standby",
    "project/test_wheel",
    "web/test_browser",
)
"""What takes half a minute or more, the longest first. It begins early, after the groups, so that no process
is still at it when the others have finished."""

_shared: dict[str, Database] = {}
"""By server: a database with the tables, for tests that empty those that they use."""

_templates: dict[str, Database] = {}
"""By server: a database with the tables, to be copied; made when a test first needs it."""

_FURTHER = re.compile(rf"(?<![^-])(mariadb|mysql|sqlite|{'|'.join(servers.DRIVERS)})(?=[-\]])")
"""Another database than PostgreSQL, or another driver, among the parameters of a test."""

OTHERS = {"redis": servers.find_redis, "pgbouncer": servers.find_pooler}


def pytest_configure(config: pytest.Config) -> None:
    """Programs that the tests start hear Ctrl-C, even where this run was started in the background. The test
    servers forget on purpose what a crash of the machine would make them forget, so nobody has to say so.
    `make test` tries few examples where each needs a server."""
    examples = 15 if config.getoption("quick") else 60
    settings.register_profile("on servers", max_examples=examples, deadline=None)
    logging.getLogger("inbox.durability").setLevel(logging.ERROR)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Start the servers and say where each comes from. Processes that share the tests start their own, and
    say nothing."""
    if config.option.collectonly or config.getoption("dist", "no") != "no":
        return []
    names = (*servers.NAMES, "redis")
    with ThreadPoolExecutor(len(names)) as pool:
        described = list(pool.map(_describe, names))
    described.append(_describe("pgbouncer"))  # in front of PostgreSQL
    described.append(_announce("rabbitmq", rabbitmq.origin()))
    return described


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `make test` leaves out and `make test-all` does not."""
    parser.addoption(
        "--quick", action="store_true", help="leave out tests marked long, and MySQL where it is as MariaDB"
    )
    parser.addoption("--matrix", action="store_true", help="run tests that need further servers, too")
    parser.addoption("--release", action="store_true", help="run what has to hold before a release, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest begins. In a group, what forks a publisher does: threads that other clients leave
    behind can make the child crash or hang."""
    items.sort(key=lambda item: (place := _place(item), place < len(GROUPS) and not _forks(item)))
    for name in ("matrix", "release"):
        if not config.getoption(name):
            further = [item for item in items if item.get_closest_marker(name)]
            items[:] = [item for item in items if item not in further]
            config.hook.pytest_deselected(items=further)
    if config.getoption("quick"):
        run: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        names = {item.nodeid for item in items}
        for item in items:
            is_left_out = _is_long(item) or _is_mysql_again(item) or _is_elsewhere(item)
            is_left_out = is_left_out or _is_one_of_many(item, names)
            (left_out if is_left_out else run).append(item)
        items[:] = run
        config.hook.pytest_deselected(items=left_out)


def _place(item: pytest.Item) -> int:
    group = file_group(item.nodeid).removeprefix("tests/")
    first = (*GROUPS, *LONG_FILES)
    return next((place for place, name in enumerate(first) if group.startswith(name)), len(first))


def _forks(item: pytest.Item) -> bool:
    return "fork" in item.name and "consumer" not in item.nodeid


def _is_long(item: pytest.Item) -> bool:
    """Marked `long`, and run with another parameter than the one that it is not long with."""
    kept = [marker.kwargs.get("but_on") for marker in item.iter_markers("long")]
    return bool(kept) and not all(each and each in item.name.partition("[")[2] for each in kept)


def _is_mysql_again(item: pytest.Item) -> bool:
    """Run on MySQL although it tells nothing that it does not tell on MariaDB, the other row of a class."""
    return "mysql" in _databases(item) and item.get_closest_marker("mysql") is None


def _is_elsewhere(item: pytest.Item) -> bool:
    """Run on another database than those it is marked `quick` with."""
    return any(_databases(item) - set(marker.args) for marker in item.iter_markers("quick"))


def _is_one_of_many(item: pytest.Item, names: AbstractSet[str]) -> bool:
    """Seven of eight rows of a test on other databases where PostgreSQL has the same row; always the same
    ones."""
    head, _, rows = item.nodeid.partition("[")
    same = f"{head}[{_FURTHER.sub('postgresql', rows, count=1)}"
    return same != item.nodeid and same in names and zlib.crc32(item.nodeid.encode()) % 8 > 0


def _databases(item: pytest.Item) -> set[str]:
    """What it is run on, as its parameters say."""
    return set(re.split(r"[\[\]-]", item.name)) & set(status_stores.NAMES)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting leaves no garbage, and looking for some takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Processes that tests fork find everything loaded, and the garbage collector passes over what stays
    until the end anyway: the modules and the items."""
    forked.preload()
    gc.collect()
    gc.freeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where processes share the tests, a file's stay together, and so do those of a group."""
    from xdist.scheduler import LoadFileScheduling  # only there where it calls this

    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = file_group
    return scheduler


def file_group(nodeid: str) -> str:
    """Which tests a test stays together with."""
    file = nodeid.partition("::")[0]
    name = file.removeprefix("tests/")
    return next((group for group, files in GROUPS.items() if name.startswith(files)), file)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a group shares ends with its last test: brokers and Spark are busy even when nobody uses them."""
    if nextitem is not None and file_group(item.nodeid) != file_group(nextitem.nodeid):
        try:
            item.session._setupstate.teardown_exact(None)
        finally:
            servers.stop_brokers()


def pytest_unconfigure() -> None:
    """Drop the databases that tests shared, and stop the servers."""
    for database in (*_shared.values(), *_templates.values()):
        database.close()
    servers.stop_all()


def _describe(name: str) -> str:
    try:
        found = OTHERS[name]() if name in OTHERS else servers.find(name)
    except (DBAPIError, psycopg.Error, RedisError, RuntimeError, OSError) as error:
        raise pytest.UsageError(f"{name} does not answer: {error}") from error
    if isinstance(found, Missing):
        return f"{name}: MISSING: {found.reason}"
    return f"{name}: {found.version}, {found.origin}"


def _announce(name: str, origin: str | Missing) -> str:
    """A server that takes seconds to start, and so waits for the first test that needs it."""
    if isinstance(origin, Missing):
        return f"{name}: MISSING: {origin.reason}"
    return f"{name}: {origin}, when a test needs it"


@pytest.fixture(params=servers.NAMES, scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    """Each server in turn; a missing one skips the test, or fails it where it is required."""
    return _server(request.param)


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    """An empty database of its own, on each server in turn."""
    yield from _database(server, server.new_database())


@pytest.fixture
def migrated(server: Server) -> Iterator[Database]:
    """A database of its own that has the inbox tables, on each server in turn."""
    yield from _database(server, _with_tables(server))


@pytest.fixture
def postgres() -> Iterator[Database]:
    """A database of its own that has the inbox tables, on PostgreSQL only."""
    server = _server("postgresql")
    yield from _database(server, _with_tables(server))


@pytest.fixture
def sqlite() -> Iterator[Database]:
    """A database of its own that has the inbox tables, on SQLite only."""
    server = _server("sqlite")
    yield from _database(server, _with_tables(server))


@pytest.fixture
def pooled(postgres: Database) -> Iterator[Database]:
    """The same database behind PgBouncer in transaction mode, without psycopg's prepared statements."""
    pooler = present("pgbouncer", servers.find_pooler())
    database = Database(postgres.server, pooler.before(postgres.url), prepare_threshold=None)
    yield database
    database.dispose()


@pytest.fixture
def private_postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL that the test may crash; the inbox tables are in its database ``url``."""
    with EmbeddedPostgres({"max_connections": "200"}) as server:
        make_tables(server.url)
        yield server


@pytest.fixture
def private_redis() -> Iterator[LocalRedis]:
    """A Redis that the test may crash; it forgets nothing that it has answered."""
    server = LocalRedis(present("redis", program()))
    yield server
    server.stop()


@pytest.fixture(params=status_stores.NAMES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Where an empty store of status-table mode is, of each kind in turn."""
    place = _redis_place() if request.param == "redis" else _sql_place(request.param)
    yield place
    place.clear()


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    """An empty store of status-table mode, of each kind in turn."""
    with place.open() as store:
        yield store


def _server(name: str) -> Server:
    return present(name, servers.find(name))


def _redis_place() -> Place:
    server = present("redis", servers.find_redis())
    return Place("redis", server.url, status_stores.new_prefix())


def _sql_place(name: str) -> Place:
    if name not in _shared:
        server = _server(name)
        _shared[name] = Database(server, server.new_database())
        make_tables(_shared[name].url)
    url, async_url = (
        each.render_as_string(hide_password=False) for each in (_shared[name].url, _shared[name].async_url)
    )
    return Place(_shared[name].name, url, async_url=async_url)


def _database(server: Server, url: URL) -> Iterator[Database]:
    database = Database(server, url)
    yield database
    database.close()


def _with_tables(server: Server) -> URL:
    if server.name not in _templates:
        template = Database(server, server.new_database())
        make_tables(template.url)
        _templates[server.name] = template
    return server.copy_database(_templates[server.name].given)
