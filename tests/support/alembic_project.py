"""An application with its own Alembic history, whose commands are run as programs."""

import subprocess
from pathlib import Path

from alembic.config import main
from sqlalchemy import URL

from tests.support.forked import run_forked

INI = """
[alembic]
script_location = %(here)s/history
"""

ENV = """
from alembic import context
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, create_engine

import inbox.migration
import inbox.schema

own = MetaData()
Table("invoice", own, Column("id", Integer, primary_key=True))
settings = {"target_metadata": own, "compare_server_default": True}
SETTINGS

url = context.get_x_argument(as_dictionary=True)["url"]
if context.is_offline_mode():
    context.configure(url=url, literal_binds=True, **settings)
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        context.configure(connection=connection, **settings)
        with context.begin_transaction():
            context.run_migrations()
"""

MAKO = '''"""${message}"""
from alembic import op
import sqlalchemy as sa
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade():
    ${upgrades if upgrades else "pass"}


def downgrade():
    ${downgrades if downgrades else "pass"}
'''

REVISION = """
from alembic import op

from inbox import migration

revision, down_revision = "{name}", {after!r}


def upgrade():
    {upgrade}


def downgrade():
    {downgrade}
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `alembic` in the repository to its end, in its own process."""
    command = ["alembic", *arguments]
    return subprocess.CompletedProcess(command, *run_forked(main, command))


class Project:
    """The files of an application, and `alembic` on them."""

    def __init__(self, folder: Path, url: URL, settings: str) -> None:
        self._folder = folder
        self._history = folder / "history"
        (self._history / "versions").mkdir(parents=True)
        (folder / "alembic.ini").write_text(INI)
        (self._history / "env.py").write_text(ENV.replace("SETTINGS", settings))
        (self._history / "script.py.mako").write_text(MAKO)
        self._url = url.render_as_string(hide_password=False)
        self._last: str | None = None

    def alembic(self, *arguments: str) -> str:
        """Run a command that must succeed, and return what it prints."""
        options = ["-c", str(self._folder / "alembic.ini"), "-x", f"url={self._url}"]
        done = run(*options, *arguments)
        assert done.returncode == 0, done.stderr[-2_000:]
        return done.stdout

    def autogenerate(self, name: str) -> str:
        """The revision that `alembic revision --autogenerate` writes."""
        self.alembic("revision", "--autogenerate", "-m", name, "--rev-id", name)
        self._last = name
        return (self._history / "versions" / f"{name}_{name}.py").read_text()

    def write(self, name: str, upgrade: str, downgrade: str) -> None:
        """Write a revision by hand."""
        text = REVISION.format(name=name, after=self._last, upgrade=upgrade, downgrade=downgrade)
        (self._history / "versions" / f"{name}.py").write_text(text)
        self._last = name
