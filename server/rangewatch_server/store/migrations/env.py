"""Alembic's entry: runs migrations on the connection the server hands over (see store/engine.py)."""

from alembic import context

from rangewatch_server.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=connection.dialect.name == "sqlite")
with context.begin_transaction():
    context.run_migrations()
