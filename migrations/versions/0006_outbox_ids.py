"""The outbox: message ids chosen by producers."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.tables.columns import plain_text
from inbox_outbox_base.tables.storing import options, storing

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
features = ("outbox",)
makes = ("outbox_id",)

TABLES = ("outbox_message", "outbox_delayed", "outbox_dead", "outbox_sent")


def upgrade() -> None:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    given: dict[str, Any] = {"schema": schema, **options()}
    was, becomes = sa.String(36), plain_text(128)
    changes_types = storing(context.dialect.name).changes_types
    op.create_table(
        "outbox_id",
        sa.Column("id", becomes if changes_types else was, nullable=False),
        sa.PrimaryKeyConstraint("id", name="outbox_id_pkey"),
        **given,
    )
    for table in TABLES:
        # Nullable and without a default, so that no row is written: the tables may be large, and in use.
        op.add_column(table, sa.Column("own_id", sa.Boolean), schema=schema)
        # Where a type cannot be changed (SQLite), its length limits nothing.
        if changes_types:
            op.alter_column(
                table, "id", existing_type=was, type_=becomes, existing_nullable=False, schema=schema
            )


def downgrade() -> None:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    was, becomes = plain_text(128), sa.String(36)
    for table in TABLES:
        if storing(context.dialect.name).changes_types:
            op.alter_column(
                table, "id", existing_type=was, type_=becomes, existing_nullable=False, schema=schema
            )
        op.drop_column(table, "own_id", schema=schema)
    op.drop_table("outbox_id", schema=schema)
