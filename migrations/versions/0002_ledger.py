"""The ledger of bulk writers: which partitions have committed."""

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.tables.columns import binary, number, plain_now, plain_text, plain_time
from inbox_outbox_base.tables.storing import options

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
features = ("ledger",)
makes = ("inbox_ledger",)


def upgrade() -> None:
    context = op.get_context()
    schema, now = context.opts["inbox_schema"], plain_now(context.dialect.name)
    op.create_table(
        "inbox_ledger",
        sa.Column("consumer", plain_text(128), nullable=False),
        sa.Column("run", plain_text(128), nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("part", sa.Integer, nullable=False),
        sa.Column("parts", sa.Integer, nullable=False),
        sa.Column("fingerprint", binary(16), nullable=False),
        sa.Column("rows_read", sa.BigInteger, nullable=False),
        sa.Column("rows_new", sa.BigInteger, nullable=False),
        sa.Column("rows_duplicate", sa.BigInteger, nullable=False),
        sa.Column("rows_repeated", sa.BigInteger, nullable=False),
        sa.Column("rows_dropped", sa.BigInteger, nullable=False),
        sa.Column("committed_at", plain_time(), nullable=False, server_default=now),
        sa.Column("id", number(), autoincrement=True, nullable=False),
        sa.Column("rows_mismatch", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("work", sa.String(24), nullable=False, server_default="unknown"),
        sa.PrimaryKeyConstraint("id", name="inbox_ledger_pkey"),
        sa.UniqueConstraint(
            "consumer", "run", "batch", "work", "part", "fingerprint", name="inbox_ledger_entry"
        ),
        sa.CheckConstraint(
            sa.column("rows_read")
            == sa.column("rows_new")
            + sa.column("rows_duplicate")
            + sa.column("rows_repeated")
            + sa.column("rows_dropped"),
            name="inbox_ledger_adds_up",
        ),
        schema=schema,
        **options(numbered=True),
    )
    # For purges, as in 0001.
    op.create_index("inbox_ledger_committed_at", "inbox_ledger", ["consumer", "committed_at"], schema=schema)


def downgrade() -> None:
    op.drop_table("inbox_ledger", schema=op.get_context().opts["inbox_schema"])
