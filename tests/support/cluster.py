"""A Galera cluster for the tests: an engine for each node, and faults of nodes."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from sqlalchemy import Engine, NullPool, create_engine

from tests.servers.galera import Node
from tests.support.processes import wait_until

DATABASE = "shop"


class Cluster:
    """Running nodes, and a database on them."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        with create_engine(nodes[0].url).begin() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        self.engines = [create_engine(node.url.set(database=DATABASE)) for node in nodes]

    def stop(self) -> None:
        """End the nodes."""
        for engine in self.engines:
            engine.dispose()
        for node in self.nodes:
            node.stop()

    def spread(self, *order: int, **options: Any) -> Engine:
        """An engine as behind a load balancer: its connections lead to these nodes in turn, except to those
        that do not take writes."""
        places = list(order or range(len(self.nodes)))
        lock = threading.Lock()

        def connect() -> Any:
            for _ in range(200 * len(places)):
                with lock:
                    places.append(places.pop(0))
                    place = places[-1]
                if (opened := self._opened(place)) is not None:
                    return opened
                time.sleep(0.05)
            raise AssertionError("no node takes writes")

        return create_engine(self.engines[0].url, creator=connect, **options)

    def led(self, to: list[int], **options: Any) -> Engine:
        """An engine whose new connections lead to the node `to[0]`; it keeps none of them."""
        return create_engine(
            self.engines[0].url, creator=lambda: self._connect(to[0]), poolclass=NullPool, **options
        )

    def rows(self, query: str, node: int = 0) -> list[Any]:
        """What a node says once it has applied what was committed before."""
        wait_until(lambda: self.takes_writes(node))
        connection = self._connect(node)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION wsrep_sync_wait = 7")
                cursor.execute(query)
                return [row[0] if len(row) == 1 else row for row in cursor.fetchall()]
        finally:
            connection.close()

    def run(self, *statements: str, node: int = 0) -> None:
        """Run statements."""
        with self.engines[node].begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def takes_writes(self, node: int) -> bool:
        """Whether a node belongs to the cluster."""
        opened = self._opened(node)
        if opened is not None:
            opened.close()
        return opened is not None

    @contextmanager
    def behind(self, node: int) -> Iterator[Callable[[], None]]:
        """A node that applies nothing of the others; the call lets it catch up."""
        own = self._connect(node)
        cursor, is_over = own.cursor(), threading.Event()

        def let_go() -> None:
            if not is_over.is_set():
                is_over.set()
                cursor.execute("UNLOCK TABLES")
                cursor.execute("SET GLOBAL wsrep_desync = OFF")

        cursor.execute("SET GLOBAL wsrep_desync = ON")
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        try:
            yield let_go
        finally:
            let_go()
            own.close()

    @contextmanager
    def parted(self, *nodes: int) -> Iterator[None]:
        """These nodes stand still; afterwards all nodes find each other again."""
        for each in nodes:
            self.nodes[each].freeze()
        try:
            yield
        finally:
            for each in nodes:
                self.nodes[each].thaw()
            wait_until(lambda: all(map(self.takes_writes, range(len(self.nodes)))))

    def _connect(self, node: int) -> Any:
        url = self.nodes[node].url
        return pymysql.connect(
            host=url.host, port=url.port or 0, user=url.username or "", database=DATABASE, connect_timeout=1
        )

    def _opened(self, node: int) -> Any:
        """A connection to a node that takes writes."""
        try:
            opened = self._connect(node)
        except pymysql.Error:
            return None
        with opened.cursor() as cursor:
            cursor.execute("SHOW STATUS LIKE 'wsrep_ready'")
            if cursor.fetchall()[0][1] == "ON":
                return opened
        opened.close()
        return None
