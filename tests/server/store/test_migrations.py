"""Migrations make exactly the schema of `tables.py`, on both databases; a newer database is refused."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from rangewatch import wire
from rangewatch_server.core.errors import DatabaseError
from rangewatch_server.ingest.commands import Ask
from rangewatch_server.routes.commands import newest_commands
from rangewatch_server.store import alerts
from rangewatch_server.store.engine import MIGRATIONS, open_database
from rangewatch_server.store.tables import access, alerting, metadata
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)


@pytest.fixture(params=["sqlite_url", "empty_postgres_url"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """Of a database that no server has seen."""
    return str(request.getfixturevalue(request.param))


def test_migrated_schema_is_the_declared_one(empty_url: str) -> None:
    engines = open_database(empty_url)
    with engines.writer.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        # SQLite has who may do what in a file of its own.
        declared = [metadata, alerting] if connection.dialect.name == "sqlite" else [metadata, alerting, access]
        assert compare_metadata(context, declared) == []
    engines.dispose()
    open_database(empty_url).dispose()  # again: nothing to do


def test_a_newer_database_is_refused(database_url: str) -> None:
    engines = open_database(database_url)
    with engines.writer.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engines.dispose()
    with pytest.raises(DatabaseError, match="newer than this version"):
        open_database(database_url)


def go_back_to(url: str, revision: str, gone: str) -> None:
    """Undo the later migrations, as a database of an older version is, without the table `gone`; what it held before
    stays.
    """
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    engine = create_engine(url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)
        assert gone not in inspect(connection).get_table_names()
    engine.dispose()


def test_a_database_of_the_first_schema_is_taken_on_with_its_data(
    database_url: str, open_store: Callable[[str], Store]
) -> None:
    old = open_store(database_url)
    old.send(opening(KNOWN))
    old.send(batch(KNOWN, 0, range(100), {"amax": 8.0}))
    old.close()
    go_back_to(database_url, "0001", "commands")
    store = open_store(database_url)
    with store.queries.read() as reader:
        run = reader.run(1)
        assert (run.name, run.last_step) == ("run", 99)
        assert run.slice("ranges", [0], 0, 0, 100, ("amax",)).columns["amax"].tolist() == [[8.0] * 100] * 3
    store.writer.command(Ask(1, {"kind": "level", "level": "grads"}, None, 1)).result(30)
    body = wire.encode(batch(KNOWN, 1, range(100, 101)))
    reply = store.writer.submit(wire.decode(body), body).result(30)
    assert [msgspec.json.decode(each)["level"] for each in reply.commands] == ["grads"]
    with store.queries.read() as reader:
        assert [each["id"] for each in newest_commands(reader.run(1), 10)] == [1]


def test_runs_of_an_older_version_are_not_examined_again(empty_url: str, open_store: Callable[[str], Store]) -> None:
    """Else the alerts of new rules would be sent for old runs."""
    old = open_store(empty_url)
    old.send(opening(KNOWN))
    old.send(batch(KNOWN, 0, range(10), {"amax": 8.0}))
    old.close()
    go_back_to(empty_url, "0007", "examined")
    with open_store(empty_url).queries.read() as reader:
        assert alerts.unexamined(reader.connection, 0, 10) == []
