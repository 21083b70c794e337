"""The ledger of bulk writers: a number for each row, which the rows written with it carry, and how many rows
had a key that was taken with other content."""

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.databases.registry import migrating
from inbox_outbox_base.tables.columns import binary, number, plain_now, plain_text, plain_time, prefix
from inbox_outbox_base.tables.storing import options, storing

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
features = ("ledger",)
makes = ()

ENTRY = ("consumer", "run", "batch", "part", "parts", "fingerprint")
COUNTS = ("rows_new", "rows_duplicate", "rows_repeated", "rows_dropped")
# One statement each: the table is small, with one row for each partition. By whether an index can leave rows
# out, which is PostgreSQL. A migration that was interrupted may have changed the table before.
UP = {
    True: """
        ALTER TABLE {prefix}inbox_ledger ADD COLUMN IF NOT EXISTS id BIGSERIAL NOT NULL,
        ADD COLUMN IF NOT EXISTS rows_mismatch BIGINT NOT NULL DEFAULT '0',
        DROP CONSTRAINT IF EXISTS inbox_ledger_entry, ADD CONSTRAINT inbox_ledger_entry
        UNIQUE (consumer, run, batch, part, parts, fingerprint),
        DROP CONSTRAINT inbox_ledger_pkey, ADD CONSTRAINT inbox_ledger_pkey PRIMARY KEY (id)""",
    False: """
        ALTER TABLE {prefix}inbox_ledger ADD COLUMN id BIGINT NOT NULL AUTO_INCREMENT,
        ADD COLUMN rows_mismatch BIGINT NOT NULL DEFAULT '0',
        DROP PRIMARY KEY, ADD PRIMARY KEY (id),
        ADD UNIQUE inbox_ledger_entry (consumer, run, batch, part, parts, fingerprint)""",
}
DOWN = {
    True: """
        ALTER TABLE {prefix}inbox_ledger DROP CONSTRAINT inbox_ledger_pkey, DROP COLUMN id,
        DROP COLUMN rows_mismatch, DROP CONSTRAINT inbox_ledger_entry, ADD CONSTRAINT inbox_ledger_pkey
        PRIMARY KEY (consumer, run, batch, part, parts, fingerprint)""",
    False: """
        ALTER TABLE {prefix}inbox_ledger DROP COLUMN id, DROP COLUMN rows_mismatch,
        DROP INDEX inbox_ledger_entry,
        DROP PRIMARY KEY, ADD PRIMARY KEY (consumer, run, batch, part, parts, fingerprint)""",
}


def upgrade() -> None:
    context = op.get_context()
    if not storing(context.dialect.name).changes_types:
        _remake(numbered=True)
    elif context.as_sql:
        _change(UP)
    else:
        schema, database = context.opts["inbox_schema"], migrating(context.dialect.name)
        # If the next revision takes long, jobs do not wait for it: this one is committed first.
        with database.beside(op.get_bind(), "inbox_message", schema) as (other, place, _):
            # The other connection does not see a ledger that this migration has just made.
            if other is None or not sa.inspect(other).has_table("inbox_ledger", schema=place):
                _change(UP)
            else:
                other.execute(sa.text(UP[True].format(prefix=prefix(place))))


def downgrade() -> None:
    if storing(op.get_context().dialect.name).changes_types:
        _change(DOWN)
    else:
        _remake(numbered=False)


def _change(statements: dict[bool, str]) -> None:
    context = op.get_context()
    statement = statements[storing(context.dialect.name).numbers_any_column]
    op.execute(statement.format(prefix=prefix(context.opts["inbox_schema"])))


def _remake(*, numbered: bool) -> None:
    """Make the table again, where a key cannot be changed."""
    names = [*ENTRY, "rows_read", *COUNTS, "committed_at"]
    op.drop_index("inbox_ledger_committed_at", "inbox_ledger")
    op.rename_table("inbox_ledger", "inbox_ledger_old")
    entry = sa.UniqueConstraint if numbered else sa.PrimaryKeyConstraint
    more = [
        sa.Column("id", number(), autoincrement=True, nullable=False),
        sa.Column("rows_mismatch", sa.BigInteger, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("id", name="inbox_ledger_pkey"),
    ]
    made = op.create_table(
        "inbox_ledger",
        sa.Column("consumer", plain_text(128), nullable=False),
        sa.Column("run", plain_text(128), nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("part", sa.Integer, nullable=False),
        sa.Column("parts", sa.Integer, nullable=False),
        sa.Column("fingerprint", binary(16), nullable=False),
        sa.Column("rows_read", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in COUNTS),
        sa.Column(
            "committed_at",
            plain_time(),
            nullable=False,
            server_default=plain_now(op.get_context().dialect.name),
        ),
        *(more if numbered else []),
        entry(*ENTRY, name="inbox_ledger_entry" if numbered else "inbox_ledger_pkey"),
        sa.CheckConstraint(
            sa.column("rows_read")
            == sa.column("rows_new")
            + sa.column("rows_duplicate")
            + sa.column("rows_repeated")
            + sa.column("rows_dropped"),
            name="inbox_ledger_adds_up",
        ),
        **options(numbered=numbered),
    )
    old = sa.table("inbox_ledger_old", *(sa.column(name) for name in names))
    op.execute(made.insert().from_select(names, sa.select(*old.c).order_by(old.c.committed_at)))
    op.drop_table("inbox_ledger_old")
    op.create_index("inbox_ledger_committed_at", "inbox_ledger", ["consumer", "committed_at"])
