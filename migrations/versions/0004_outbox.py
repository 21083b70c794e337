"""The outbox: waiting, delayed, dead and sent messages, and the relays that send them."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.tables.columns import long_binary, long_text, number, plain_now, plain_text, plain_time
from inbox_outbox_base.tables.storing import options, storing, where

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
    "outbox_gone",
    "outbox_id",
)

BUCKETS = 64
MESSAGE_RULES = {
    "known": "state IN ('pending', 'unknown', 'held')",
    "attempts": "unanswered >= 0 AND attempts >= unanswered",
    "why": "state = 'pending' OR error IS NOT NULL",
}


def _now() -> sa.TextClause:
    return plain_now(op.get_context().dialect.name)


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, number(), autoincrement=True, nullable=False)


def _id() -> sa.Column[Any]:
    return sa.Column("id", plain_text(128), nullable=False)


def _own_id() -> sa.Column[Any]:
    return sa.Column("own_id", sa.Boolean)


def _content() -> list[sa.Column[Any]]:
    return [
        sa.Column("topic", plain_text(249), nullable=False),
        sa.Column("key", plain_text(512)),
        sa.Column("payload", long_binary(), nullable=False),
        sa.Column("content_type", sa.String(255), nullable=False),
        sa.Column("headers", long_text()),
        sa.Column("created_at", plain_time(), nullable=False, server_default=_now()),
    ]


def upgrade() -> None:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    given: dict[str, Any] = {"schema": schema, **options()}
    numbered: dict[str, Any] = {"schema": schema, **options(numbered=True)}
    numbers_any_column = storing(context.dialect.name).numbers_any_column
    # On databases other than PostgreSQL, the column that numbers the rows has to begin the key.
    by_bucket, by_id = (
        ((first, "sequence") if numbers_any_column else ("sequence",)) for first in ("bucket", "id")
    )
    op.create_table(
        "outbox_message",
        sa.Column("bucket", sa.Integer, nullable=False),
        _number("sequence"),
        _id(),
        *_content(),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("unanswered", sa.Integer, nullable=False, server_default="0"),
        sa.Column("state", sa.String(7), nullable=False, server_default="pending"),
        sa.Column("retry_at", plain_time()),
        sa.Column("error", long_text()),
        _own_id(),
        sa.Column("failing_since", plain_time()),
        sa.PrimaryKeyConstraint(*by_bucket, name="outbox_message_pkey"),
        *(sa.CheckConstraint(rule, name=f"outbox_message_{name}") for name, rule in MESSAGE_RULES.items()),
        **numbered,
    )
    op.create_index(
        "outbox_message_bucket",
        "outbox_message",
        ["bucket", "sequence"],
        schema=schema,
        **where(sa.text("state <> 'pending' OR attempts > 0")),
    )
    op.create_table(
        "outbox_delayed",
        _id(),
        sa.Column("available_at", plain_time(), nullable=False),
        sa.Column("bucket", sa.Integer, nullable=False),
        *_content(),
        _own_id(),
        _number("sequence"),
        sa.PrimaryKeyConstraint(*by_id, name="outbox_delayed_pkey"),
        **numbered,
    )
    op.create_index("outbox_delayed_id", "outbox_delayed", ["id"], schema=schema, **where(sa.text("false")))
    op.create_index("outbox_delayed_available_at", "outbox_delayed", ["available_at"], schema=schema)
    op.create_table(
        "outbox_dead",
        _id(),
        sa.Column("bucket", sa.Integer, nullable=False),
        *_content(),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("outcome", sa.String(7), nullable=False),
        sa.Column("error", long_text(), nullable=False),
        sa.Column("dead_at", plain_time(), nullable=False, server_default=_now()),
        _own_id(),
        sa.PrimaryKeyConstraint("id", name="outbox_dead_pkey"),
        sa.CheckConstraint("outcome IN ('refused', 'unknown')", name="outbox_dead_known"),
        **given,
    )
    op.create_index("outbox_dead_dead_at", "outbox_dead", ["dead_at"], schema=schema)
    op.create_index("outbox_dead_topic", "outbox_dead", ["topic", "dead_at"], schema=schema)
    op.create_index("outbox_dead_key", "outbox_dead", ["key"], schema=schema)
    op.create_table(
        "outbox_sent",
        _id(),
        sa.Column("topic", plain_text(249), nullable=False),
        sa.Column("key", plain_text(512)),
        sa.Column("created_at", plain_time(), nullable=False),
        sa.Column("sent_at", plain_time(), nullable=False, server_default=_now()),
        sa.Column("keep_until", plain_time(), nullable=False),
        _own_id(),
        sa.PrimaryKeyConstraint("id", name="outbox_sent_pkey"),
        **given,
    )
    op.create_index("outbox_sent_sent_at", "outbox_sent", ["sent_at"], schema=schema)
    op.create_index("outbox_sent_keep_until", "outbox_sent", ["keep_until"], schema=schema)
    bucket = op.create_table(
        "outbox_bucket",
        sa.Column("bucket", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("epoch", sa.BigInteger),
        sa.Column("mark", sa.BigInteger),
        sa.Column("mark_origin", sa.String(255)),
        sa.Column("generation", sa.BigInteger, nullable=False, server_default="1"),
        sa.Column("added_at", plain_time()),
        sa.Column("freed_at", plain_time()),
        sa.PrimaryKeyConstraint("bucket", name="outbox_bucket_pkey"),
        **given,
    )
    op.bulk_insert(bucket, [{"bucket": number} for number in range(BUCKETS)])
    op.create_table(
        "outbox_relay",
        sa.Column("epoch", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("lease_until", plain_time(), nullable=False),
        sa.Column("sending", long_text()),
        sa.Column("joined_at", plain_time(), nullable=False, server_default=_now()),
        sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("keeps_sent", sa.Boolean),
        sa.Column("crowded_by", plain_text(249)),
        sa.Column("lanes", long_text()),
        sa.Column("lease_ms", sa.Integer),
        sa.PrimaryKeyConstraint("epoch", name="outbox_relay_pkey"),
        **given,
    )
    op.create_table(
        "outbox_pause",
        sa.Column("topic", plain_text(249), nullable=False),
        sa.Column("paused_at", plain_time(), nullable=False, server_default=_now()),
        sa.Column("paused_by", sa.String(255)),
        sa.Column("why", long_text()),
        sa.PrimaryKeyConstraint("topic", name="outbox_pause_pkey"),
        **given,
    )
    op.create_table(
        "outbox_gone",
        sa.Column("topic", plain_text(249), nullable=False),
        sa.Column("gone_at", plain_time(), nullable=False, server_default=_now()),
        sa.PrimaryKeyConstraint("topic", name="outbox_gone_pkey"),
        **given,
    )
    op.create_table("outbox_id", _id(), sa.PrimaryKeyConstraint("id", name="outbox_id_pkey"), **given)


def downgrade() -> None:
    schema = op.get_context().opts["inbox_schema"]
    for table in reversed(makes):
        op.drop_table(table, schema=schema, if_exists=True)
