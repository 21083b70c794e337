"""The inbox table of the exactly-once path."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
features = ("inbox",)
makes = ("inbox_message",)

NOW = {
    "postgresql": "clock_timestamp()",
    "mysql": "(utc_timestamp(6))",
    "mariadb": "(utc_timestamp(6))",
    "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now'))",
}


def _bytewise(longest: int) -> sa.types.TypeEngine[str]:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return text.with_variant(mysql.VARBINARY(longest), "mysql", "mariadb")


def _binary(longest: int) -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.VARBINARY(longest), "mysql", "mariadb")


def upgrade() -> None:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    time = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    long_text = sa.Text().with_variant(mysql.MEDIUMTEXT, "mysql", "mariadb")
    op.create_table(
        "inbox_message",
        sa.Column("consumer", _bytewise(128), nullable=False),
        sa.Column("key", _bytewise(512), nullable=False),
        sa.Column("accepted_at", time, nullable=False, server_default=sa.text(NOW[context.dialect.name])),
        sa.Column("claim", _binary(16), nullable=False),
        sa.Column("digest", _binary(16)),
        sa.Column("result", long_text),
        sa.PrimaryKeyConstraint("consumer", "key", name="inbox_message_pkey"),
        sa.CheckConstraint(sa.column("consumer") != "", name="inbox_message_consumer_not_empty"),
        sa.CheckConstraint(sa.column("key") != "", name="inbox_message_key_not_empty"),
        schema=schema,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
    )
    op.create_index("inbox_message_accepted_at", "inbox_message", ["consumer", "accepted_at"], schema=schema)


def downgrade() -> None:
    op.drop_table("inbox_message", schema=op.get_context().opts["inbox_schema"])
