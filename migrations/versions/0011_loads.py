"""Rows written in bulk on PostgreSQL: time, job and partition are in the ledger, and no index is for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.databases.registry import migrating
from inbox_outbox_base.tables.columns import binary, long_text, plain_now, plain_text, plain_time, prefix
from inbox_outbox_base.tables.storing import options, storing

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
features = ("inbox",)
makes = ()

PAGES = 500
"""How many pages of a large table a downgrade changes at a time. For so long, an `accept` of a key in them
waits."""

LAST = 2**32 - 2

GIVE_TIMES = """
    UPDATE {{table}} SET accepted_at = {time}, claim = '', load = NULL
    WHERE load IS NOT NULL AND ctid >= '({page},0)' AND ctid < '({end},0)'"""
TIME = "coalesce((SELECT committed_at FROM {prefix}inbox_ledger WHERE id = load), clock_timestamp())"
"""A row whose load is unknown is kept for a whole retention from now on."""

Run = Callable[[str], object]


def upgrade() -> None:
    known = storing(op.get_context().dialect.name)
    if not known.changes_types:
        _remake(with_load=True)
    elif known.numbers_any_column:
        _upgrade_beside_writers()
    else:
        _here("""
            ALTER TABLE {table} ADD COLUMN `load` BIGINT,
            MODIFY accepted_at DATETIME(6) DEFAULT (utc_timestamp(6)), MODIFY claim VARBINARY(16),
            ADD CONSTRAINT inbox_message_load CHECK
            ((`load` IS NULL) = (accepted_at IS NOT NULL) AND (`load` IS NULL) = (claim IS NOT NULL))""")


def downgrade() -> None:
    known = storing(op.get_context().dialect.name)
    if not known.changes_types:
        _remake(with_load=False)
    elif known.numbers_any_column:
        _downgrade_beside_writers()
    else:  # there no row has a load
        _here("""
            ALTER TABLE {table} DROP CONSTRAINT inbox_message_load, DROP COLUMN `load`,
            MODIFY accepted_at DATETIME(6) NOT NULL DEFAULT (utc_timestamp(6)),
            MODIFY claim VARBINARY(16) NOT NULL""")


def _upgrade_beside_writers() -> None:
    with _beside_writers() as (run, concurrently, _):
        # A migration that was interrupted may have done it before.
        run("""
            ALTER TABLE {table} ADD COLUMN IF NOT EXISTS load BIGINT,
            DROP CONSTRAINT IF EXISTS inbox_message_load, ADD CONSTRAINT inbox_message_load CHECK (
            (load IS NULL) = (accepted_at IS NOT NULL) AND (load IS NULL) = (claim IS NOT NULL)) NOT VALID""")
        run("ALTER TABLE {table} VALIDATE CONSTRAINT inbox_message_load")
        _make_index(run, concurrently, "WHERE accepted_at IS NOT NULL")
    _here("ALTER TABLE {table} ALTER accepted_at DROP NOT NULL, ALTER claim DROP NOT NULL")
    _swap_index()


def _downgrade_beside_writers() -> None:
    time = TIME if _has_ledger() else "clock_timestamp()"
    with _beside_writers() as (run, concurrently, pages):
        # From here on, no row of a load is written.
        run("""
            ALTER TABLE {table} DROP CONSTRAINT IF EXISTS inbox_message_old, ADD CONSTRAINT inbox_message_old
            CHECK (accepted_at IS NOT NULL AND claim IS NOT NULL AND load IS NULL) NOT VALID""")
        for page in range(0, pages, PAGES):
            end = page + PAGES if page + PAGES < pages else LAST  # the table may have grown
            run(GIVE_TIMES.format(page=page, end=end, time=time))
        run("ALTER TABLE {table} VALIDATE CONSTRAINT inbox_message_old")
        _make_index(run, concurrently, "")
    # The constraint proves it: the table is not read for it.
    _here("ALTER TABLE {table} ALTER accepted_at SET NOT NULL, ALTER claim SET NOT NULL")
    _here("ALTER TABLE {table} DROP CONSTRAINT inbox_message_old, DROP COLUMN load")
    _swap_index()


def _has_ledger() -> bool:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    return not context.as_sql and sa.inspect(op.get_bind()).has_table("inbox_ledger", schema=schema)


def _make_index(run: Run, concurrently: str, where: str) -> None:
    if concurrently:
        run("SET lock_timeout = '1min'")  # nobody waits behind it
    run(f"DROP INDEX {concurrently} IF EXISTS {{prefix}}inbox_message_new")
    run(f"CREATE INDEX {concurrently} inbox_message_new ON {{table}} (consumer, accepted_at) {where}")


def _swap_index() -> None:
    _here("DROP INDEX {prefix}inbox_message_accepted_at")
    _here("ALTER INDEX {prefix}inbox_message_new RENAME TO inbox_message_accepted_at")


@contextmanager
def _beside_writers() -> Iterator[tuple[Run, str, int]]:
    """Runs statements before the migration's transaction locks the table. On a large table each of them
    commits, and they block no writer; on a small one they do not take long.

    Yields how to run a statement, the word for indexes, and the table's number of pages.
    """
    context = op.get_context()
    schema: str | None = context.opts["inbox_schema"]
    if context.as_sql:
        yield _here, "", 1
        return
    database = migrating(context.dialect.name)
    with database.beside(op.get_bind(), "inbox_message", schema) as (other, place, pages):
        if other is None:
            yield _here, "", pages
        else:
            yield lambda each: other.execute(sa.text(_filled(each, place))), "CONCURRENTLY", pages


def _here(statement: str) -> None:
    """Run it in the migration's transaction."""
    context = op.get_context()
    op.execute(_filled(statement, context.opts["inbox_schema"]))


def _filled(statement: str, schema: str | None) -> str:
    return statement.format(prefix=prefix(schema), table=f"{prefix(schema)}inbox_message")


def _remake(*, with_load: bool) -> None:
    """Make the table again, where a column cannot be changed."""
    names = ["consumer", "key", "accepted_at", "claim", "digest", "result"]
    given = sa.table("inbox_message", sa.column("load"), sa.column("accepted_at"), sa.column("claim")).c
    is_single = given.load.is_(None)
    own = sa.and_(is_single == given.accepted_at.is_not(None), is_single == given.claim.is_not(None))
    now = plain_now(op.get_context().dialect.name)
    op.drop_index("inbox_message_accepted_at", "inbox_message")
    op.rename_table("inbox_message", "inbox_message_old")
    made = op.create_table(
        "inbox_message",
        sa.Column("consumer", plain_text(128), nullable=False),
        sa.Column("key", plain_text(512), nullable=False),
        sa.Column("accepted_at", plain_time(), nullable=with_load, server_default=now),
        sa.Column("claim", binary(16), nullable=with_load),
        sa.Column("digest", binary(16)),
        sa.Column("result", long_text()),
        *([sa.Column("load", sa.BigInteger)] if with_load else []),
        sa.PrimaryKeyConstraint("consumer", "key", name="inbox_message_pkey"),
        sa.CheckConstraint(sa.column("consumer") != "", name="inbox_message_consumer_not_empty"),
        sa.CheckConstraint(sa.column("key") != "", name="inbox_message_key_not_empty"),
        *([sa.CheckConstraint(own, name="inbox_message_load")] if with_load else []),
        **options(),
    )
    old = sa.table("inbox_message_old", *(sa.column(name) for name in names))
    op.execute(made.insert().from_select(names, sa.select(*old.c).order_by(sa.literal_column("rowid"))))
    op.drop_table("inbox_message_old")
    op.create_index("inbox_message_accepted_at", "inbox_message", ["consumer", "accepted_at"])
