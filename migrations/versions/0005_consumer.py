"""Each consumer's mode, how long its keys are kept, and when it was last purged."""

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.tables.columns import binary, plain_now, plain_text, plain_time
from inbox_outbox_base.tables.storing import options

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
features = ("inbox", "status", "ledger")
makes = ("inbox_consumer", "inbox_purge")

RULES = {
    "mode": "mode IN ('exactly-once', 'status')",
    "retention": "margin >= 0 AND retention >= margin",
    "dead": "(mode = 'status') = (dead_retention IS NOT NULL)",
}


def upgrade() -> None:
    context = op.get_context()
    now = plain_now(context.dialect.name)
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
        sa.PrimaryKeyConstraint("consumer", "id", name="inbox_consumer_pkey"),
        sa.CheckConstraint(sa.column("consumer") != "", name="inbox_consumer_consumer_not_empty"),
        *(sa.CheckConstraint(rule, name=f"inbox_consumer_{name}") for name, rule in RULES.items()),
        schema=context.opts["inbox_schema"],
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
        schema=context.opts["inbox_schema"],
        **options(),
    )


def downgrade() -> None:
    schema = op.get_context().opts["inbox_schema"]
    for table in reversed(makes):
        op.drop_table(table, schema=schema, if_exists=True)
