"""The fixtures of the server's tests: real databases and real server processes."""

from tests.server.conftest import (  # noqa: F401 - fixtures
    database_url,
    databases,
    postgres_url,
    server,
    sqlite_url,
    start_server,
)
