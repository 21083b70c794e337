"""Each consumer's mode, how long its keys are kept, when it was last purged, what it has refused, and which
keys it still takes."""

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.tables.columns import binary, long_text, plain_now, plain_text, plain_time
from inbox_outbox_base.tables.storing import options

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
features = ("inbox", "status", "ledger")
makes = ("inbox_consumer", "inbox_purge", "inbox_refused", "inbox_horizon")

RULES = {
    "mode": "mode IN ('exactly-once', 'status')",
    "retention": "margin >= 0 AND retention >= margin",
    "dead": "(mode = 'status') = (dead_retention IS NOT NULL)",
    "key_time": "key_time IN ('uuid7', 'ulid', 'timed')",
}
REFUSED_RULES = {
    "known": "verdict IN ('mismatch', 'too_old', 'dead')",
    "counts": "times > 0",
}


def upgrade() -> None:
    context = op.get_context()
    schema, now = context.opts["inbox_schema"], plain_now(context.dialect.name)
    op.create_table(
        "inbox_consumer",
        sa.Column("consumer", plain_text(128), nullable=False),
        sa.Column("id", binary(16), nullable=False),
        sa.Column("mode", sa.String(12), nullable=False),
        sa.Column("retention", sa.BigInteger, nullable=False),
        sa.Column("margin", sa.BigInteger, nullable=False),
        sa.Column("dead_retention", sa.BigInteger),
        sa.Column("digest_format", sa.SmallInteger, nullable=False),
        sa.Column("declared_at", plain_time(), nullable=False, server_default=now),
        sa.Column("key_time", sa.String(5)),
        sa.PrimaryKeyConstraint("consumer", "id", name="inbox_consumer_pkey"),
        sa.CheckConstraint(sa.column("consumer") != "", name="inbox_consumer_consumer_not_empty"),
        *(sa.CheckConstraint(rule, name=f"inbox_consumer_{name}") for name, rule in RULES.items()),
        schema=schema,
        **options(),
    )
    op.create_table(
        "inbox_purge",
        sa.Column("consumer", plain_text(128), nullable=False),
        sa.Column("begun_at", plain_time(), nullable=False, server_default=now),
        sa.Column("ended_at", plain_time()),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("finished", sa.Boolean, nullable=False),
        sa.Column("alive_until", plain_time()),
        sa.PrimaryKeyConstraint("consumer", name="inbox_purge_pkey"),
        schema=schema,
        **options(),
    )
    op.create_table(
        "inbox_refused",
        sa.Column("consumer", plain_text(128), nullable=False),
        sa.Column("key", plain_text(512), nullable=False),
        sa.Column("verdict", sa.String(8), nullable=False),
        sa.Column("digest", binary(16)),
        sa.Column("stored_digest", binary(16)),
        sa.Column("error", long_text()),
        sa.Column("message_id", sa.String(255)),
        sa.Column("topic", sa.String(255)),
        sa.Column("place", sa.String(255)),
        sa.Column("times", sa.BigInteger, nullable=False),
        sa.Column("first_seen", plain_time(), nullable=False, server_default=now),
        sa.Column("last_seen", plain_time(), nullable=False, server_default=now),
        sa.PrimaryKeyConstraint("consumer", "key", name="inbox_refused_pkey"),
        sa.CheckConstraint(sa.column("consumer") != "", name="inbox_refused_consumer_not_empty"),
        *(sa.CheckConstraint(rule, name=f"inbox_refused_{name}") for name, rule in REFUSED_RULES.items()),
        schema=schema,
        **options(),
    )
    # For purges, as in 0001.
    op.create_index("inbox_refused_last_seen", "inbox_refused", ["consumer", "last_seen"], schema=schema)
    op.create_table(
        "inbox_horizon",
        sa.Column("consumer", plain_text(128), nullable=False),
        sa.Column("keys_from", plain_text(64), nullable=False),
        sa.Column("keys_gone", plain_text(64), nullable=False),
        sa.Column("stored_at", plain_time(), nullable=False, server_default=now),
        sa.Column("keys_until", plain_text(64)),
        sa.PrimaryKeyConstraint("consumer", name="inbox_horizon_pkey"),
        sa.CheckConstraint(sa.column("consumer") != "", name="inbox_horizon_consumer_not_empty"),
        sa.CheckConstraint("keys_gone <= keys_from", name="inbox_horizon_gone"),
        schema=schema,
        **options(),
    )


def downgrade() -> None:
    schema = op.get_context().opts["inbox_schema"]
    for table in reversed(makes):
        op.drop_table(table, schema=schema, if_exists=True)
