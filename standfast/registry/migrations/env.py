"""Alembic's entry point. `standfast.registry.schema` hands over a connection with an open transaction; it commits, not
Alembic.
"""

from alembic import context

from standfast.registry.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
