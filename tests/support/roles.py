"""Roles with the grants that docs/privileges.md lists, and nothing else."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.errors import codes
from tests.support.database import Database
from tests.support.program import ROOT

PASSWORD = "secret"  # noqa: S105 - of a role that lives for one test
SECTIONS = {"postgresql": "PostgreSQL", "mariadb": "MySQL and MariaDB"}
GRANT = re.compile(r"GRANT (?P<rights>.+) ON (?P<object>.+) TO app")
RIGHT = re.compile(r"[A-Z]+(?: [A-Z]+)*(?: \([a-z_, ]+\))?")


@dataclass(frozen=True, slots=True)
class Right:
    """One privilege on one object."""

    name: str
    thing: str


def page() -> str:
    """The text of the documentation's page."""
    return (ROOT / "docs" / "privileges.md").read_text()


def script(server: str, heading: str) -> str:
    """The SQL of a section, or the part of it below a comment."""
    section = page().split(f"## {SECTIONS[server]}\n")[1].split("\n## ")[0]
    block = section.split("```sql\n")[1].split("```")[0]
    return f"\n{block}".split(f"\n-- {heading}\n")[1].split("\n-- ")[0]


def rights(server: str, part: str) -> list[Right]:
    """Every single privilege of a part."""
    found = [GRANT.fullmatch(line.rstrip(";")) for line in script(server, part).splitlines() if line]
    return [
        Right(name.strip(), each["object"])
        for each in found
        if each is not None
        for name in RIGHT.findall(each["rights"])
    ]


class Role:
    """A role of one test on one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owner = database.engine(isolation_level="AUTOCOMMIT")
        self._name = f"app_{uuid4().hex[:12]}"
        self._is_mysql = database.name != "postgresql"
        if self._is_mysql:
            self._run(f"CREATE USER {self._account} IDENTIFIED BY '{PASSWORD}'")
        else:
            self._run(f"CREATE ROLE {self._name} LOGIN PASSWORD '{PASSWORD}'")

    @property
    def _account(self) -> str:
        return f"'{self._name}'@'%'" if self._is_mysql else self._name

    @property
    def database(self) -> Database:
        """The database, connected to as this role."""
        url = self._database.url.set(username=self._name, password=PASSWORD)
        return Database(self._database.server, url)

    def grant(self, right: Right) -> None:
        """Grant it a privilege."""
        self._run(f"GRANT {right.name} ON {self._placed(right)} TO {self._account}")

    def revoke(self, right: Right) -> None:
        """Revoke it."""
        self._run(f"REVOKE {right.name} ON {self._placed(right)} FROM {self._account}")

    def drop(self) -> None:
        """Drop the role."""
        if self._is_mysql:
            self._run(f"DROP USER {self._account}")
        else:
            self._run(f"DROP OWNED BY {self._name}")
            self._run(f"DROP ROLE {self._name}")

    def _placed(self, right: Right) -> str:
        return f"`{self._database.url.database}`.{right.thing}" if self._is_mysql else right.thing

    def _run(self, statement: str) -> None:
        with self._owner.connect() as connection:
            connection.exec_driver_sql(statement.replace("%", "%%") if self._is_mysql else statement)


@contextmanager
def role(database: Database) -> Iterator[Role]:
    """A role that exists during a block."""
    made = Role(database)
    try:
        yield made
    finally:
        made.drop()


def is_denied(error: BaseException | None) -> bool:
    """Whether an error, or its cause, says that a privilege is missing."""
    while error is not None:
        if isinstance(error, DBAPIError) and codes.is_denied(error):
            return True
        error = error.__cause__
    return False
