"""What operators have decided, for all features."""

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.tables.columns import long_text, plain_now, plain_text, plain_time
from inbox_outbox_base.tables.storing import options

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
features = ("inbox", "status", "ledger", "outbox")
makes = ("ops_decision",)


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


def downgrade() -> None:
    op.drop_table("ops_decision", schema=op.get_context().opts["inbox_schema"], if_exists=True)
