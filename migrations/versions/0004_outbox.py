"""The outbox: waiting, delayed, dead and sent messages, and the relays that send them."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
features = ("outbox",)
makes = (
    "outbox_message",
    "outbox_delayed",
    "outbox_dead",
    "outbox_sent",
    "outbox_bucket",
    "outbox_relay",
    "outbox_pause",
)

BUCKETS = 64
NOW = {
    "postgresql": "clock_timestamp()",
    "mysql": "(utc_timestamp(6))",
    "mariadb": "(utc_timestamp(6))",
    "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now'))",
}
MESSAGE_RULES = {
    "known": "state IN ('pending', 'unknown', 'held')",
    "attempts": "unanswered >= 0 AND attempts >= unanswered",
    "why": "state = 'pending' OR error IS NOT NULL",
}
OPTIONS = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
}


def _bytewise(longest: int) -> sa.types.TypeEngine[str]:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return text.with_variant(mysql.VARBINARY(longest), "mysql", "mariadb")


def _time() -> sa.types.TypeEngine[Any]:
    return sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _long_text() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(mysql.MEDIUMTEXT, "mysql", "mariadb")


def _now() -> sa.TextClause:
    return sa.text(NOW[op.get_context().dialect.name])


def _number(name: str) -> sa.Column[Any]:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column(name, number, autoincrement=True, nullable=False)


def _content() -> list[sa.Column[Any]]:
    return [
        sa.Column("topic", _bytewise(249), nullable=False),
        sa.Column("key", _bytewise(512)),
        sa.Column(
            "payload", sa.LargeBinary().with_variant(mysql.LONGBLOB, "mysql", "mariadb"), nullable=False
        ),
        sa.Column("content_type", sa.String(255), nullable=False),
        sa.Column("headers", _long_text()),
        sa.Column("created_at", _time(), nullable=False, server_default=_now()),
    ]


def upgrade() -> None:
    context = op.get_context()
    options: dict[str, Any] = {"schema": context.opts["inbox_schema"], **OPTIONS}
    by_bucket = ("bucket", "sequence") if context.dialect.name == "postgresql" else ("sequence",)
    op.create_table(
        "outbox_message",
        sa.Column("bucket", sa.SmallInteger, nullable=False),
        _number("sequence"),
        sa.Column("id", sa.String(36), nullable=False),
        *_content(),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("unanswered", sa.Integer, nullable=False, server_default="0"),
        sa.Column("state", sa.String(7), nullable=False, server_default="pending"),
        sa.Column("retry_at", _time()),
        sa.Column("error", _long_text()),
        sa.PrimaryKeyConstraint(*by_bucket, name="outbox_message_pkey"),
        *(sa.CheckConstraint(rule, name=f"outbox_message_{name}") for name, rule in MESSAGE_RULES.items()),
        sqlite_autoincrement=True,
        **options,
    )
    op.create_index(
        "outbox_message_bucket",
        "outbox_message",
        ["bucket", "sequence"],
        schema=options["schema"],
        postgresql_where=sa.text("state <> 'pending'"),
    )
    op.create_table(
        "outbox_delayed",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("available_at", _time(), nullable=False),
        sa.Column("bucket", sa.SmallInteger, nullable=False),
        *_content(),
        sa.PrimaryKeyConstraint("id", name="outbox_delayed_pkey"),
        **options,
    )
    op.create_index(
        "outbox_delayed_available_at", "outbox_delayed", ["available_at"], schema=options["schema"]
    )
    op.create_table(
        "outbox_dead",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("bucket", sa.SmallInteger, nullable=False),
        *_content(),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("outcome", sa.String(7), nullable=False),
        sa.Column("error", _long_text(), nullable=False),
        sa.Column("dead_at", _time(), nullable=False, server_default=_now()),
        sa.PrimaryKeyConstraint("id", name="outbox_dead_pkey"),
        sa.CheckConstraint("outcome IN ('refused', 'unknown')", name="outbox_dead_known"),
        **options,
    )
    op.create_index("outbox_dead_dead_at", "outbox_dead", ["dead_at"], schema=options["schema"])
    op.create_table(
        "outbox_sent",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("topic", _bytewise(249), nullable=False),
        sa.Column("key", _bytewise(512)),
        sa.Column("created_at", _time(), nullable=False),
        sa.Column("sent_at", _time(), nullable=False, server_default=_now()),
        sa.PrimaryKeyConstraint("id", name="outbox_sent_pkey"),
        **options,
    )
    op.create_index("outbox_sent_sent_at", "outbox_sent", ["sent_at"], schema=options["schema"])
    bucket = op.create_table(
        "outbox_bucket",
        sa.Column("bucket", sa.SmallInteger, nullable=False, autoincrement=False),
        sa.Column("epoch", sa.BigInteger),
        sa.PrimaryKeyConstraint("bucket", name="outbox_bucket_pkey"),
        **options,
    )
    op.bulk_insert(bucket, [{"bucket": number} for number in range(BUCKETS)])
    op.create_table(
        "outbox_relay",
        _number("epoch"),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("lease_until", _time(), nullable=False),
        sa.Column("sending", _long_text()),
        sa.Column("joined_at", _time(), nullable=False, server_default=_now()),
        sa.PrimaryKeyConstraint("epoch", name="outbox_relay_pkey"),
        sqlite_autoincrement=True,
        **options,
    )
    op.create_table(
        "outbox_pause",
        sa.Column("topic", _bytewise(249), nullable=False),
        sa.Column("paused_at", _time(), nullable=False, server_default=_now()),
        sa.PrimaryKeyConstraint("topic", name="outbox_pause_pkey"),
        **options,
    )


def downgrade() -> None:
    schema = op.get_context().opts["inbox_schema"]
    for table in reversed(makes):
        op.drop_table(table, schema=schema)
