"""Each consumer's mode, and how long its keys are kept."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
features = ("inbox", "status", "ledger")
makes = ("inbox_consumer",)

NOW = {
    "postgresql": "clock_timestamp()",
    "mysql": "(utc_timestamp(6))",
    "mariadb": "(utc_timestamp(6))",
    "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now'))",
}
RULES = {
    "mode": "mode IN ('exactly-once', 'status')",
    "retention": "margin >= 0 AND retention >= margin",
    "dead": "(mode = 'status') = (dead_retention IS NOT NULL)",
}


def upgrade() -> None:
    context = op.get_context()
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    time = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    now = sa.text(NOW[context.dialect.name])
    op.create_table(
        "inbox_consumer",
        sa.Column("consumer", text.with_variant(mysql.VARBINARY(128), "mysql", "mariadb"), nullable=False),
        sa.Column(
            "id", sa.LargeBinary().with_variant(mysql.VARBINARY(16), "mysql", "mariadb"), nullable=False
        ),
        sa.Column("mode", sa.String(12), nullable=False),
        sa.Column("retention", sa.BigInteger, nullable=False),
        sa.Column("margin", sa.BigInteger, nullable=False),
        sa.Column("dead_retention", sa.BigInteger),
        sa.Column("digest_format", sa.SmallInteger, nullable=False),
        sa.Column("declared_at", time, nullable=False, server_default=now),
        sa.PrimaryKeyConstraint("consumer", "id", name="inbox_consumer_pkey"),
        sa.CheckConstraint(sa.column("consumer") != "", name="inbox_consumer_consumer_not_empty"),
        *(sa.CheckConstraint(rule, name=f"inbox_consumer_{name}") for name, rule in RULES.items()),
        schema=context.opts["inbox_schema"],
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
    )


def downgrade() -> None:
    op.drop_table("inbox_consumer", schema=op.get_context().opts["inbox_schema"])
