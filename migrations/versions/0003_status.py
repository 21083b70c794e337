"""Status-table mode: the progress of each message, and its current holder."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
features = ("status",)
makes = ("inbox_status",)

NOW = {
    "postgresql": "clock_timestamp()",
    "mysql": "(utc_timestamp(6))",
    "mariadb": "(utc_timestamp(6))",
    "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now'))",
}
RULES = {
    "known": "status IN ('consuming', 'consumed', 'failed', 'dead', 'halted')",
    "lease": "(status = 'consuming') = (lease_until IS NOT NULL)",
    "attempts": "attempts_finished >= 0 AND attempts_started >= attempts_finished",
    "result": "status = 'consumed' OR result IS NULL",
    "halted": "status <> 'halted' OR pending_step IS NOT NULL",
    "given_up": "status NOT IN ('dead', 'halted') OR error IS NOT NULL",
}


def _bytewise(longest: int) -> sa.types.TypeEngine[str]:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return text.with_variant(mysql.VARBINARY(longest), "mysql", "mariadb")


def upgrade() -> None:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    now = sa.text(NOW[context.dialect.name])
    time = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    long_text = sa.Text().with_variant(mysql.MEDIUMTEXT, "mysql", "mariadb")
    binary = sa.LargeBinary().with_variant(mysql.VARBINARY(16), "mysql", "mariadb")
    op.create_table(
        "inbox_status",
        sa.Column("consumer", _bytewise(128), nullable=False),
        sa.Column("key", _bytewise(512), nullable=False),
        sa.Column("status", sa.String(9), nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("claim", binary, nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("lease_until", time),
        sa.Column("attempts_started", sa.Integer, nullable=False),
        sa.Column("attempts_finished", sa.Integer, nullable=False),
        sa.Column("digest", binary),
        sa.Column("payload", sa.LargeBinary().with_variant(mysql.LONGBLOB, "mysql", "mariadb")),
        sa.Column("result", long_text),
        sa.Column("error", long_text),
        sa.Column("steps", long_text),
        sa.Column("history", long_text),
        sa.Column("pending_step", sa.String(255)),
        sa.Column("undos", sa.Integer, nullable=False, server_default="0"),
        sa.Column("created_at", time, nullable=False, server_default=now),
        sa.Column("updated_at", time, nullable=False, server_default=now),
        sa.PrimaryKeyConstraint("consumer", "key", name="inbox_status_pkey"),
        sa.CheckConstraint(sa.column("consumer") != "", name="inbox_status_consumer_not_empty"),
        sa.CheckConstraint(sa.column("key") != "", name="inbox_status_key_not_empty"),
        *(sa.CheckConstraint(rule, name=f"inbox_status_{name}") for name, rule in RULES.items()),
        schema=schema,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
    )
    columns = ["status", "consumer", "updated_at"]
    op.create_index("inbox_status_updated_at", "inbox_status", columns, schema=schema)


def downgrade() -> None:
    op.drop_table("inbox_status", schema=op.get_context().opts["inbox_schema"])
