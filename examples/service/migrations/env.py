"""Alembic's environment: the shop's tables, and those of the inbox and the outbox."""

from alembic import context
from sqlalchemy import create_engine

import inbox.schema
from examples.service.models import DATABASE, Base

with create_engine(DATABASE).connect() as connection:
    context.configure(
        connection=connection, target_metadata=[Base.metadata, inbox.schema.metadata_for("inbox", "outbox")]
    )
    with context.begin_transaction():
        context.run_migrations()
