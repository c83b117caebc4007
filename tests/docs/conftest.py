"""A real server for the docs' code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.reported import emit
from tests.server.process import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With the run that the examples read."""
    found = Server(str(tmp_path_factory.mktemp("docs") / "a.db"))
    emit(found)
    yield found
    found.stop()
