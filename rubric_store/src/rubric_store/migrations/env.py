"""Alembic's environment: runs revisions on the connection that `rubric_store.migrations` opened."""

from alembic import context

from rubric_store.migrations.schema_status import all_tables

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("run migrations with rubric_store.migrations.upgrade(url); this tree takes no alembic.ini")

context.configure(connection=connection, target_metadata=all_tables(), render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
