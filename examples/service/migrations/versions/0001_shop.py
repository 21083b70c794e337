"""The shop's tables, the inbox and the outbox."""

import sqlalchemy as sa
from alembic import op

from inbox import migration

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "shop_order",
        sa.Column("number", sa.String, primary_key=True),
        sa.Column("item", sa.String, nullable=False),
        sa.Column("cents", sa.Integer, nullable=False),
    )
    op.create_table(
        "shop_invoice",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("order_number", sa.String, nullable=False),
        sa.Column("cents", sa.Integer, nullable=False),
    )
    migration.upgrade(op, "0006", features=["inbox", "outbox"])


def downgrade() -> None:
    migration.downgrade(op)
    op.drop_table("shop_invoice")
    op.drop_table("shop_order")
