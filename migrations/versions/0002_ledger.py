"""The ledger of bulk writers: which partitions have committed."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
features = ("ledger",)
makes = ("inbox_ledger",)

NOW = {
    "postgresql": "clock_timestamp()",
    "mysql": "(utc_timestamp(6))",
    "mariadb": "(utc_timestamp(6))",
    "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now'))",
}


def _bytewise(longest: int) -> sa.types.TypeEngine[str]:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return text.with_variant(mysql.VARBINARY(longest), "mysql", "mariadb")


def upgrade() -> None:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    time = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    binary = sa.LargeBinary().with_variant(mysql.VARBINARY(16), "mysql", "mariadb")
    op.create_table(
        "inbox_ledger",
        sa.Column("consumer", _bytewise(128), nullable=False),
        sa.Column("run", _bytewise(128), nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("part", sa.Integer, nullable=False),
        sa.Column("parts", sa.Integer, nullable=False),
        sa.Column("fingerprint", binary, nullable=False),
        sa.Column("rows_read", sa.BigInteger, nullable=False),
        sa.Column("rows_new", sa.BigInteger, nullable=False),
        sa.Column("rows_duplicate", sa.BigInteger, nullable=False),
        sa.Column("rows_repeated", sa.BigInteger, nullable=False),
        sa.Column("rows_dropped", sa.BigInteger, nullable=False),
        sa.Column("committed_at", time, nullable=False, server_default=sa.text(NOW[context.dialect.name])),
        sa.PrimaryKeyConstraint(
            "consumer", "run", "batch", "part", "parts", "fingerprint", name="inbox_ledger_pkey"
        ),
        sa.CheckConstraint(
            sa.column("rows_read")
            == sa.column("rows_new")
            + sa.column("rows_duplicate")
            + sa.column("rows_repeated")
            + sa.column("rows_dropped"),
            name="inbox_ledger_adds_up",
        ),
        schema=schema,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
    )
    op.create_index("inbox_ledger_committed_at", "inbox_ledger", ["consumer", "committed_at"], schema=schema)


def downgrade() -> None:
    op.drop_table("inbox_ledger", schema=op.get_context().opts["inbox_schema"])
