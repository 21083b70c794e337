"""The outbox: message ids chosen by producers."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
features = ("outbox",)
makes = ("outbox_id",)

TABLES = ("outbox_message", "outbox_delayed", "outbox_dead", "outbox_sent")
OPTIONS = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
}


def _id() -> sa.types.TypeEngine[str]:
    text = sa.Text(collation="C").with_variant(sa.String(36), "sqlite")
    return text.with_variant(mysql.VARBINARY(128), "mysql", "mariadb")


def upgrade() -> None:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    options: dict[str, Any] = {"schema": schema, **OPTIONS}
    op.create_table(
        "outbox_id",
        sa.Column("id", _id(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="outbox_id_pkey"),
        **options,
    )
    for table in TABLES:
        op.add_column(table, sa.Column("own_id", sa.Boolean), schema=schema)
        if context.dialect.name != "sqlite":  # SQLite ignores the length
            was, becomes = sa.String(36), _id()
            op.alter_column(
                table, "id", existing_type=was, type_=becomes, existing_nullable=False, schema=schema
            )


def downgrade() -> None:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    for table in TABLES:
        if context.dialect.name != "sqlite":
            was, becomes = _id(), sa.String(36)
            op.alter_column(
                table, "id", existing_type=was, type_=becomes, existing_nullable=False, schema=schema
            )
        op.drop_column(table, "own_id", schema=schema)
    op.drop_table("outbox_id", schema=schema)
