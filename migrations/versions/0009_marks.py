"""The outbox: up to where everything in a bucket has left."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
features = ("outbox",)
makes = ()


def upgrade() -> None:
    schema = op.get_context().opts["inbox_schema"]
    op.add_column("outbox_bucket", sa.Column("mark", sa.BigInteger), schema=schema)
    op.add_column("outbox_bucket", sa.Column("mark_origin", sa.String(255)), schema=schema)


def downgrade() -> None:
    schema = op.get_context().opts["inbox_schema"]
    op.drop_column("outbox_bucket", "mark_origin", schema=schema)
    op.drop_column("outbox_bucket", "mark", schema=schema)
