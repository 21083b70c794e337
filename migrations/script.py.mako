"""${message}."""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None
features = ()  # whose tables it makes or changes: of inbox.schema.FEATURES
makes = ()  # the tables that it makes


def upgrade() -> None:
    """What the tables gain; `op.get_context().opts["inbox_schema"]` is the schema that they are in."""


def downgrade() -> None:
    """The way back."""
