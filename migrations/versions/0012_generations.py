"""The outbox: the number of buckets can change while messages are published and sent."""

import sqlalchemy as sa
from alembic import op

from inbox_outbox_base.errors.outbox import WrongState
from inbox_outbox_base.tables.columns import plain_time

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
features = ("outbox",)
makes = ()


def upgrade() -> None:
    schema = op.get_context().opts["inbox_schema"]
    first = sa.Column("generation", sa.Integer, nullable=False, server_default="1")
    op.add_column("outbox_bucket", first, schema=schema)
    op.add_column("outbox_bucket", sa.Column("added_at", plain_time()), schema=schema)
    unknown = sa.Column("generation", sa.Integer, nullable=False, server_default="0")
    op.add_column("outbox_relay", unknown, schema=schema)


def downgrade() -> None:
    context = op.get_context()
    schema = context.opts["inbox_schema"]
    if not context.as_sql:
        _renumber(schema)
    op.drop_column("outbox_relay", "generation", schema=schema)
    op.drop_column("outbox_bucket", "added_at", schema=schema)
    op.drop_column("outbox_bucket", "generation", schema=schema)


def _renumber(schema: str | None) -> None:
    """Number the buckets from 0, as older versions expect them."""
    connection = op.get_bind()
    bucket, generation = sa.column("bucket", sa.Integer), sa.column("generation", sa.Integer)
    buckets = sa.table("outbox_bucket", bucket, generation, schema=schema)
    newest = connection.execute(sa.select(sa.func.max(generation)).select_from(buckets)).scalar()
    if newest in (None, 1):
        return
    for name in ("outbox_message", "outbox_delayed"):
        table = sa.table(name, schema=schema)
        if connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None:
            raise WrongState(
                f"table {name} is not empty: the number of buckets was changed, and in older versions keys "
                "would lose their order; let the relays send all messages first"
            )
    counted = sa.select(sa.func.count()).select_from(buckets).where(generation == newest)
    count = connection.execute(counted).scalar_one()
    connection.execute(sa.delete(buckets))
    connection.execute(sa.insert(buckets), [{"bucket": number} for number in range(count)])
