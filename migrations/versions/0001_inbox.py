"""The inbox table of the exactly-once path."""

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.tables.columns import binary, long_text, plain_now, plain_text, plain_time
from inbox_outbox_base.tables.storing import options, where

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
features = ("inbox",)
makes = ("inbox_message",)


def upgrade() -> None:
    context = op.get_context()
    schema, now = context.opts["inbox_schema"], plain_now(context.dialect.name)
    is_single = sa.column("load").is_(None)
    has_time, has_claim = (sa.column(name).is_not(None) for name in ("accepted_at", "claim"))
    op.create_table(
        "inbox_message",
        sa.Column("consumer", plain_text(128), nullable=False),
        sa.Column("key", plain_text(512), nullable=False),
        sa.Column("accepted_at", plain_time(), server_default=now),
        sa.Column("claim", binary(16)),
        sa.Column("digest", binary(16)),
        sa.Column("result", long_text()),
        sa.Column("load", sa.BigInteger),
        sa.PrimaryKeyConstraint("consumer", "key", name="inbox_message_pkey"),
        sa.CheckConstraint(sa.column("consumer") != "", name="inbox_message_consumer_not_empty"),
        sa.CheckConstraint(sa.column("key") != "", name="inbox_message_key_not_empty"),
        sa.CheckConstraint(sa.and_(is_single == has_time, is_single == has_claim), name="inbox_message_load"),
        schema=schema,
        **options(),
    )
    # For purges, which find the oldest rows of one consumer after another.
    op.create_index(
        "inbox_message_accepted_at",
        "inbox_message",
        ["consumer", "accepted_at"],
        schema=schema,
        **where(has_time),
    )


def downgrade() -> None:
    op.drop_table("inbox_message", schema=op.get_context().opts["inbox_schema"], if_exists=True)
