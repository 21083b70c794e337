"""What operators have decided, and what was counted in each minute, for all features."""

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.tables.columns import long_text, plain_now, plain_text, plain_time
from inbox_outbox_base.tables.storing import options

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
features = ("inbox", "status", "ledger", "outbox")
makes = ("ops_decision", "ops_minute")


def upgrade() -> None:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    op.create_table(
        "ops_decision",
        sa.Column("id", plain_text(32), nullable=False),
        sa.Column("at", plain_time(), nullable=False, server_default=plain_now(context.dialect.name)),
        sa.Column("by", plain_text(255), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("filter", long_text(), nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("why", long_text()),
        sa.PrimaryKeyConstraint("id", name="ops_decision_pkey"),
        sa.CheckConstraint(sa.column("count") > 0, name="ops_decision_counts"),
        schema=schema,
        **options(),
    )
    op.create_index("ops_decision_at", "ops_decision", ["at"], schema=schema)
    op.create_table(
        "ops_minute",
        sa.Column("minute", plain_time(), nullable=False),
        sa.Column("source", plain_text(96), nullable=False),
        sa.Column("kind", plain_text(16), nullable=False),
        sa.Column("name", plain_text(249), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("minute", "source", "kind", "name", name="ops_minute_pkey"),
        schema=schema,
        **options(),
    )


def downgrade() -> None:
    for table in reversed(makes):
        op.drop_table(table, schema=op.get_context().opts["inbox_schema"], if_exists=True)
