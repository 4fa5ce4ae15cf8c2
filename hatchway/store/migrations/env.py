"""Run by Alembic for each command; `hatchway.store.migrate` hands over an open connection."""

from alembic import context
from sqlalchemy import Connection, text

connection: Connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=None, transaction_per_migration=False)
with context.begin_transaction():
    # Two migrating at once: the second waits, then finds nothing to do.
    connection.execute(text("select pg_advisory_xact_lock(hashtextextended('hatchway:migrate', 0))"))
    context.run_migrations()
