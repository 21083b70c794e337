"""The outbox: the time of a message's first failed send."""

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.tables.columns import plain_time

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
features = ("outbox",)
makes = ()


def upgrade() -> None:
    schema = op.get_context().opts["inbox_schema"]
    # Nullable, as the column of 0006.
    op.add_column("outbox_message", sa.Column("failing_since", plain_time()), schema=schema)


def downgrade() -> None:
    op.drop_column("outbox_message", "failing_since", schema=op.get_context().opts["inbox_schema"])
