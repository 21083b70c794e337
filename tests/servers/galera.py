"""A Galera cluster: MariaDB nodes that all take writes (Debian's mariadb-server, galera-4 and rsync)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from examples.embedded_postgres import free_port
from tests.servers import mariadb, mysql_like
from tests.servers.server import Missing

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
NODES = 3
SETTINGS = (
    *mysql_like.SETTINGS,
    "--wsrep-on=ON",
    f"--wsrep-provider={PROVIDER}",
    "--binlog-format=ROW",
    "--innodb-autoinc-lock-mode=2",
    "--wsrep-sst-method=rsync",
)


class Node(mysql_like.LocalMySQL):
    """One node of a cluster; the first one founds it."""

    def __init__(self, program: str, make_data: Callable[[Path], Sequence[str]], ports: list[int]) -> None:
        own, *others = ports
        address = "gcomm://" + ",".join(f"127.0.0.1:{port}" for port in others)
        listen = f"gmcast.listen_addr=tcp://127.0.0.1:{own};ist.recv_addr=127.0.0.1:{free_port()}"
        settings = [
            *SETTINGS,
            f"--wsrep-cluster-address={address}",
            f"--wsrep-provider-options={listen}",
            f"--wsrep-node-address=127.0.0.1:{own}",
            f"--wsrep-sst-receive-address=127.0.0.1:{free_port()}",
            *([] if others else ["--wsrep-new-cluster"]),
        ]
        super().__init__(program, make_data, settings)

    def ready(self) -> bool:
        """Whether it takes writes."""
        return super().ready() and self._status("wsrep_ready") == "ON"

    def _status(self, name: str) -> Any:
        engine = create_engine(self.url)
        try:
            with engine.connect() as connection:
                return connection.exec_driver_sql(f"SHOW STATUS LIKE '{name}'").one()[1]
        finally:
            engine.dispose()


def find() -> list[Node] | Missing:
    """The nodes of a new cluster; the caller stops them."""
    program = mariadb.program()
    if isinstance(program, Missing):
        return program
    if not PROVIDER.exists():
        return Missing(f"{PROVIDER} is not installed")
    nodes: list[Node] = []
    ports: list[int] = []
    try:
        for _ in range(NODES):
            own = free_port()
            nodes.append(Node(*program, [own, *ports]))
            ports.append(own)
    except BaseException:
        for node in nodes:
            node.stop()
        raise
    return nodes
