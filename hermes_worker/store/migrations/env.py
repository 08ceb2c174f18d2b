"""Alembic's entry: runs on the connection that ``store.migrate`` hands over."""

from alembic import context

from hermes_worker.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
if connection.dialect.name == "sqlite":
    # A batch operation drops a table and renames another. While a view reads the table, SQLite refuses that, unless
    # it renames as it did before version 3.25: without a look at what else names the table.
    connection.exec_driver_sql("pragma legacy_alter_table = on")
else:
    # An index that is there already was built ahead, by us or by an operator (docs/migrations.md).
    create_index = (impl := context.get_context().impl).create_index
    setattr(impl, "create_index", lambda index, **options: create_index(index, **{**options, "if_not_exists": True}))  # noqa: B010
with context.begin_transaction():
    context.run_migrations()
if connection.dialect.name == "sqlite":
    connection.exec_driver_sql("pragma legacy_alter_table = off")
