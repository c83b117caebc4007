"""Schemathesis over the OpenAPI document that a real server with data serves: no 5xx, and what is declared holds.

RANGEWATCH_SOAK=1 makes it long: `EXAMPLES` of each route, of what is right and of what is not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import requests
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, assume, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rangewatch_server.app import OPENAPI_PATH, ROUTES
from tests.browser import hand_made_health
from tests.fuzz import template
from tests.server.process import Server
from tests.server.tokens import bearer

TOKEN = "a token of this test"
EXAMPLES = 1_000 if os.environ.get("RANGEWATCH_SOAK") else 8
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip
RUNS = range(1, 5)
LEFT_OUT = {"GET /api/v1/live": "its answer never ends; tests/server/test_live_reads.py and the browser have it"}
# These change or remove runs: to a server that others do not read from.
DESTROYS = ("DELETE /api/v1/runs/{run_id}", "POST /api/v1/prune", "PUT /api/v1/restore")
HEADERS = {"authorization", "host", "origin", "cookie", "content-length", "sec-fetch-site"}  # access tests have them
MAX_ADDRESS = 60_000  # longer heads are refused before there is a route, as text; tests/server/test_connections.py


def operations() -> dict[str, dict[str, Any]]:
    """All there are, without a database: a test asks whether the served document has these."""
    app = FastAPI()
    for each in ROUTES:
        app.include_router(each.router)
    paths = app.openapi()["paths"].items()
    return {f"{method.upper()} {path}": about for path, found in paths for method, about in found.items()}


def cases() -> Iterator[Any]:
    """Each route with what is right, and where something can be wrong with that."""
    for name, about in operations().items():
        if name in LEFT_OUT:
            continue
        yield pytest.param(name, GenerationMode.POSITIVE, id=f"right {name}")
        if "parameters" in about or name in ("POST /login", "POST /api/v1/runs/{run_id}/commands"):
            yield pytest.param(name, GenerationMode.NEGATIVE, id=f"wrong {name}")


@schemathesis.serializer("application/zstd", "application/octet-stream")
def as_they_are(_: Any, value: Any) -> bytes:
    """Bodies that are no text."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


class Served:
    """A server with runs of all kinds, and its document as Schemathesis has it."""

    def __init__(self, db: Path) -> None:
        self.server = Server(str(db), "--token", TOKEN)
        self.server.client.headers.update(bearer(TOKEN))
        hand_made_health.send(self.server)
        for message in (template.OPENING, template.good_batch(0), template.good_batch(1)):
            hand_made_health.accept(self.server, message)
        self.session = requests.Session()
        self.session.headers.update(bearer(TOKEN))
        url = self.server.url + OPENAPI_PATH
        self.schema = schemathesis.openapi.from_url(url, headers=bearer(TOKEN))

    def operation(self, name: str) -> Any:
        return self.schema.find_operation_by_label(name)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Served]]:
    """The server that is read from, or the one that may be destroyed."""
    started: dict[bool, Served] = {}

    def of(destroys: bool) -> Served:
        if destroys not in started:
            started[destroys] = Served(tmp_path_factory.mktemp("openapi") / "a.db")
        return started[destroys]

    yield of
    for each in started.values():
        each.session.close()
        each.server.stop()


def test_the_document_needs_a_token_and_has_no_pages(served: Callable[[bool], Served]) -> None:
    server = served(False).server
    assert requests.get(server.url + OPENAPI_PATH, timeout=30).status_code == 401
    document = server.get(OPENAPI_PATH)
    assert {f"{m.upper()} {path}" for path, found in document["paths"].items() for m in found} == operations().keys()
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert "draws its pages with JavaScript" in server.client.get(path).text, "as for any other path"


@pytest.mark.parametrize(("name", "mode"), list(cases()))
def test_every_route(name: str, mode: GenerationMode, served: Callable[[bool], Served]) -> None:
    target = served(name in DESTROYS)

    @settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=target.operation(name).as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        _aim(case)
        case.call_and_validate(session=target.session, checks=CHECKS, timeout=60)

    run()


def _aim(case: Any) -> None:
    """Most ids at random name no run: mostly one that is there. Headers that say who asks are left as they are."""
    parameters = case.path_parameters or {}
    number = parameters.get("run_id")
    if isinstance(number, int) and number % 4:
        parameters["run_id"] = RUNS[number % len(RUNS)]
    assume(not HEADERS & {str(each).lower() for each in case.headers or {}})
    assume(len(urlencode(case.query or {}, doseq=True)) < MAX_ADDRESS)
