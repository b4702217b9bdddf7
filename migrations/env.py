"""Runs the migrations on the connection that ``service.db.migrate`` hands over, inside its transaction."""

from alembic import context

from service.db.tables import METADATA

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=METADATA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
