"""Alembic's entry: runs on the connection that ``store.migrate`` hands over."""

from alembic import context

from hermes_worker.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
