"""Schemathesis over the OpenAPI document that a real server with data serves: no 5xx, and what is declared holds.

Of each route, examples of what is right and of what is not: eight, and in a soak a thousand.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

from rangewatch_server.http.app import OPENAPI_PATH, ROUTES
from tests.browser import hand_made_health
from tests.fuzz import template
from tests.server.process import Server
from tests.server.tokens import bearer

if TYPE_CHECKING:
    from schemathesis import GenerationMode  # a second to import, which tests that are not chosen need not wait for

TOKEN = "a token of this test"
RUNS = range(1, 5)
LEFT_OUT = {"GET /api/v1/live": "its answer never ends; tests/server/query/test_live_reads.py and the browser have it"}
# These change or remove runs: to a server that others do not read from.
DESTROYS = ("DELETE /api/v1/runs/{run_id}", "POST /api/v1/prune", "PUT /api/v1/restore")
HEADERS = {"authorization", "host", "origin", "cookie", "content-length", "sec-fetch-site"}  # access tests have them
MAX_ADDRESS = 60_000  # longer heads are refused before there is a route, as text; tests/server/http/test_connections.py


EXAMPLES = pytest.mark.parametrize("examples", [
    pytest.param(8, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(7_200)]),
])  # fmt: skip


def operations() -> dict[str, dict[str, Any]]:
    """All there are, without a database: a test asks whether the served document has these."""
    from fastapi import FastAPI

    app = FastAPI()
    for each in ROUTES:
        app.include_router(each.router)
    paths = app.openapi()["paths"].items()
    return {f"{method.upper()} {path}": about for path, found in paths for method, about in found.items()}


def cases() -> Iterator[tuple[str, GenerationMode]]:
    """Each route with what is right, and where something can be wrong with that."""
    from schemathesis import GenerationMode

    for name, about in operations().items():
        if name in LEFT_OUT:
            continue
        yield name, GenerationMode.POSITIVE
        if "parameters" in about or name in ("POST /login", "POST /api/v1/runs/{run_id}/commands"):
            yield name, GenerationMode.NEGATIVE


def as_they_are(_: Any, value: Any) -> bytes:
    """Bodies that are no text."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


class Target:
    """A server with runs of all kinds, and its document as Schemathesis has it."""

    def __init__(self, db: Path) -> None:
        import requests
        import schemathesis

        schemathesis.serializer("application/zstd", "application/octet-stream")(as_they_are)
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

    def check(self, case: Any) -> None:
        """Send it, and raise what is wrong with the answer."""
        from schemathesis.checks import not_a_server_error

        declared = importlib.import_module("schemathesis.specs.openapi.checks")
        names = ("status_code", "content_type", "response_headers", "response_schema")
        checks = [not_a_server_error, *(getattr(declared, f"{name}_conformance") for name in names)]
        case.call_and_validate(session=self.session, checks=checks, timeout=60)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Target]]:
    """The server that is read from, or the one that may be destroyed."""
    started: dict[bool, Target] = {}

    def of(destroys: bool) -> Target:
        if destroys not in started:
            started[destroys] = Target(tmp_path_factory.mktemp("openapi") / "a.db")
        return started[destroys]

    yield of
    for each in started.values():
        each.session.close()
        each.server.stop()


def test_the_document_has_every_route_and_no_pages(served: Server) -> None:
    document = served.get(OPENAPI_PATH)
    assert {f"{m.upper()} {path}" for path, found in document["paths"].items() for m in found} == operations().keys()
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert "draws its pages with JavaScript" in served.client.get(path).text, "as for any other path"


@pytest.mark.slow
def test_the_document_needs_a_token(targets: Callable[[bool], Target]) -> None:
    assert httpx.get(targets(False).server.url + OPENAPI_PATH).status_code == 401


@EXAMPLES
def test_every_route(examples: int, targets: Callable[[bool], Target]) -> None:
    failed = {}
    for name, mode in cases():
        try:
            fuzz(targets(name in DESTROYS), name, mode, examples)
        except Exception as error:
            failed[f"{mode.name} {name}"] = error
    assert not failed, "\n\n".join(f"{name}: {error}" for name, error in failed.items())


def fuzz(target: Target, name: str, mode: GenerationMode, examples: int) -> None:
    """So many examples of one route."""

    @settings(
        max_examples=examples, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=target.operation(name).as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        _aim(case)
        target.check(case)

    run()


def _aim(case: Any) -> None:
    """Most ids at random name no run: mostly one that is there. Headers that say who asks are left as they are."""
    parameters = case.path_parameters or {}
    number = parameters.get("run_id")
    if isinstance(number, int) and number % 4:
        parameters["run_id"] = RUNS[number % len(RUNS)]
    assume(not HEADERS & {str(each).lower() for each in case.headers or {}})
    assume(len(urlencode(case.query or {}, doseq=True)) < MAX_ADDRESS)
