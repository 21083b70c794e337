"""The outbox: the time of a message's first failed send."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
features = ("outbox",)
makes = ()


def upgrade() -> None:
    time = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    schema = op.get_context().opts["inbox_schema"]
    op.add_column("outbox_message", sa.Column("failing_since", time), schema=schema)


def downgrade() -> None:
    op.drop_column("outbox_message", "failing_since", schema=op.get_context().opts["inbox_schema"])
