"""Migrations make exactly the schema of `tables.py`, on both databases; a newer database is refused."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from rangewatch_server.store.engine import DatabaseError, open_database
from rangewatch_server.store.tables import metadata


def test_migrated_schema_is_the_declared_one(database_url: str) -> None:
    engines = open_database(database_url)
    with engines.writer.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engines.dispose()
    open_database(database_url).dispose()  # again: nothing to do


def test_a_newer_database_is_refused(database_url: str) -> None:
    engines = open_database(database_url)
    with engines.writer.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engines.dispose()
    with pytest.raises(DatabaseError, match="newer than this version"):
        open_database(database_url)
