"""Status-table mode: how often a message was given back because its handler was interrupted."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
features = ("status",)


def upgrade() -> None:
    column = sa.Column("interruptions", sa.Integer, nullable=False, server_default="0")
    op.add_column("inbox_status", column, schema=op.get_context().opts["inbox_schema"])


def downgrade() -> None:
    op.drop_column("inbox_status", "interruptions", schema=op.get_context().opts["inbox_schema"])
