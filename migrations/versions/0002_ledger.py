"""The ledger of bulk writers: which partitions have committed, and which rows were refused."""

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.tables.columns import binary, long_text, number, plain_now, plain_text, plain_time
from inbox_outbox_base.tables.storing import options

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
features = ("ledger",)
makes = ("inbox_ledger", "inbox_rejected")


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
        sa.Column("rows_rejected", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("rows_updated", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("work", sa.String(24), nullable=False, server_default="unknown"),
        sa.PrimaryKeyConstraint("id", name="inbox_ledger_pkey"),
        sa.UniqueConstraint(
            "consumer", "run", "batch", "work", "part", "fingerprint", name="inbox_ledger_entry"
        ),
        sa.CheckConstraint(
            sa.column("rows_read")
            == sa.column("rows_rejected")
            + sa.column("rows_new")
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
    op.create_table(
        "inbox_rejected",
        sa.Column("consumer", plain_text(128), nullable=False),
        sa.Column("key", plain_text(512), nullable=False),
        sa.Column("error", long_text(), nullable=False),
        sa.Column("content", long_text(), nullable=False),
        sa.Column("run", plain_text(128), nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("part", sa.Integer, nullable=False),
        sa.Column("load", sa.BigInteger),
        sa.Column("rejected_at", plain_time(), nullable=False, server_default=now),
        sa.PrimaryKeyConstraint("consumer", "key", name="inbox_rejected_pkey"),
        sa.CheckConstraint(sa.column("consumer") != "", name="inbox_rejected_consumer_not_empty"),
        sa.CheckConstraint(sa.column("key") != "", name="inbox_rejected_key_not_empty"),
        schema=schema,
        **options(),
    )
    op.create_index(
        "inbox_rejected_rejected_at", "inbox_rejected", ["consumer", "rejected_at"], schema=schema
    )


def downgrade() -> None:
    op.drop_table("inbox_rejected", schema=op.get_context().opts["inbox_schema"], if_exists=True)
    op.drop_table("inbox_ledger", schema=op.get_context().opts["inbox_schema"], if_exists=True)
