"""Status-table mode: the progress of each message, and its current holder."""

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.tables.columns import binary, long_binary, long_text, plain_now, plain_text, plain_time
from inbox_outbox_base.tables.storing import options

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
features = ("status",)
makes = ("inbox_status",)

# A copy, as in all revisions: a revision makes the same tables for ever, even if the rules change.
RULES = {
    "known": "status IN ('consuming', 'consumed', 'failed', 'dead', 'halted')",
    "lease": "(status = 'consuming') = (lease_until IS NOT NULL)",
    "attempts": "attempts_finished >= 0 AND attempts_started >= attempts_finished",
    "result": "status = 'consumed' OR result IS NULL",
    "halted": "status <> 'halted' OR pending_step IS NOT NULL",
    "given_up": "status NOT IN ('dead', 'halted') OR error IS NOT NULL",
}


def upgrade() -> None:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    now = plain_now(context.dialect.name)
    op.create_table(
        "inbox_status",
        sa.Column("consumer", plain_text(128), nullable=False),
        sa.Column("key", plain_text(512), nullable=False),
        sa.Column("status", sa.String(9), nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("claim", binary(16), nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("lease_until", plain_time()),
        sa.Column("attempts_started", sa.Integer, nullable=False),
        sa.Column("attempts_finished", sa.Integer, nullable=False),
        sa.Column("digest", binary(16)),
        sa.Column("payload", long_binary()),
        sa.Column("delivery", long_text()),
        sa.Column("result", long_text()),
        sa.Column("error", long_text()),
        sa.Column("steps", long_text()),
        sa.Column("history", long_text()),
        sa.Column("pending_step", sa.String(255)),
        sa.Column("undos", sa.Integer, nullable=False, server_default="0"),
        sa.Column("created_at", plain_time(), nullable=False, server_default=now),
        sa.Column("updated_at", plain_time(), nullable=False, server_default=now),
        sa.Column("interruptions", sa.Integer, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("consumer", "key", name="inbox_status_pkey"),
        sa.CheckConstraint(sa.column("consumer") != "", name="inbox_status_consumer_not_empty"),
        sa.CheckConstraint(sa.column("key") != "", name="inbox_status_key_not_empty"),
        *(sa.CheckConstraint(rule, name=f"inbox_status_{name}") for name, rule in RULES.items()),
        schema=schema,
        **options(),
    )
    # The status comes first: an index that begins like the primary key may be used to find a single key.
    columns = ["status", "consumer", "updated_at"]
    op.create_index("inbox_status_updated_at", "inbox_status", columns, schema=schema)


def downgrade() -> None:
    op.drop_table("inbox_status", schema=op.get_context().opts["inbox_schema"], if_exists=True)
