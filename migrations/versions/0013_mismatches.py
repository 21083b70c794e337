"""The ledger of bulk writers: how many rows had a key that was taken with other content."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
features = ("ledger",)
makes = ()


def upgrade() -> None:
    schema = op.get_context().opts["inbox_schema"]
    counted = sa.Column("rows_mismatch", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("inbox_ledger", counted, schema=schema)


def downgrade() -> None:
    op.drop_column("inbox_ledger", "rows_mismatch", schema=op.get_context().opts["inbox_schema"])
