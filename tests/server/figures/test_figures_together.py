"""`GET /api/v1/runs/{id}/figures`: what each figure would answer alone, in one answer of one moment."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, text, update

from rangewatch import wire
from rangewatch_server import figures
from rangewatch_server.core.errors import ApiError
from rangewatch_server.core.settings import Settings
from rangewatch_server.figures.base import Figure
from rangewatch_server.http.app import create_app
from rangewatch_server.routes import figures as figures_api
from rangewatch_server.store import tables
from tests.server.own_loop import in_own_loop
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
STEPS = 600
PATH = "/api/v1/runs/1/figures"
ASKED = [
    "loss?columns=50",
    "timeline?start=10&stop=200&columns=40",
    "layers?rank=all&kind=output&kind=grad_output&kind=input&kind=weight&q=&sort=worst&rows=2&tree=5",
    "tensor?tensor=1&rank=0",
    "series?q=loss",
    "step_time",
]


@pytest.fixture
def client(sqlite_url: str) -> Iterator[TestClient]:
    with serving(sqlite_url) as made:
        yield made


@pytest.fixture
def either(database_url: str) -> Iterator[TestClient]:
    """On SQLite and on PostgreSQL, which ends a transaction in which a statement failed."""
    with serving(database_url) as made:
        yield made


@contextmanager
def serving(url: str) -> Iterator[TestClient]:
    """Two ranks of 600 steps."""
    with TestClient(create_app(Settings(db=url)), base_url="http://127.0.0.1") as made:
        for rank in (0, 1):
            amax = np.arange(STEPS) // 100 * 100 + rank + 1.0
            whole = batch(KNOWN, 0, range(STEPS), {"amax": amax}, rank=rank, series={"loss": np.arange(STEPS) / 7})
            for each in (opening(KNOWN, rank=rank, world_size=2), whole):
                body = wire.encode(each)
                made.app.state.writer.submit(wire.decode(body), body).result(30)
        yield made


def lines(client: TestClient, *asked: str, path: str = PATH) -> list[dict[str, Any]]:
    answer = client.get(path, params={"figure": asked})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "rangewatch-changes" in answer.headers
    return [msgspec.json.decode(line) for line in answer.content.splitlines()]


def test_each_is_what_it_is_alone_in_the_order_asked_for(either: TestClient) -> None:
    found = lines(either, *ASKED)
    assert [each["number"] for each in found] == list(range(len(ASKED)))
    assert [each["answer"] for each in found] == [either.get(f"{PATH}/{asked}").json() for asked in ASKED]
    assert found[1]["answer"]["meta"]["stop"] == 200  # parameters are read
    older = lines(either, "loss", path=f"{PATH}?incarnation=1")  # asked for once, of the whole request
    assert older[0]["answer"] == either.get(f"{PATH}/loss?incarnation=1").json()


REFUSED = [
    ("nope", 404, "unknown_figure", "there is no figure 'nope'"),
    ("", 404, "unknown_figure", "there is no figure ''"),
    ("tensor?tensor=77", 404, "unknown_tensor", "run 1 has no tensor 77"),
    ("layers?rank=9", 404, "unknown_rank", "run 1 has no rank 9"),
    ("layers?rank=x", 422, "bad_parameter", "rank must be a number"),
    ("layers?columns=many", 422, "bad_parameter", "columns: Input should be a valid integer"),
    ("layers?columns=0", 422, "bad_parameter", "columns: Input should be greater"),
    ("layers?start=-1", 422, "bad_parameter", "start: "),
    ("layers?kind=nope", 422, "bad_parameter", "kind 'nope'"),
    ("layers?statistic=" + "a" * 61, 422, "bad_parameter", "statistic: String should have at most"),
    ("layers?" + "&".join(["q=a"] * 400), 422, "bad_parameter", "figure: "),
    ("loss?incarnation=1", 422, "bad_parameter", "figure: incarnation is asked for once"),
    ("nope?columns=0", 422, "bad_parameter", "columns: "),
]


def test_one_that_is_refused_says_why_and_the_others_come(client: TestClient) -> None:
    first, *found, last = lines(client, "loss", *(asked for asked, *_ in REFUSED), "timeline")
    reported = [(each["status"], each["refused"]["code"]) for each in found]
    assert reported == [(status, code) for _, status, code, _ in REFUSED]
    for each, (asked, *_, says) in zip(found, REFUSED, strict=True):
        assert each["refused"]["error"].startswith(says), asked
    assert first["answer"]["meta"] and last["answer"]["meta"]
    counted = client.get("/metrics").text
    for status in {status for _, status, *_ in REFUSED}:
        number = sum(each == status for _, each, *_ in REFUSED)
        assert f'rangewatch_figures_refused_total{{status="{status}"}} {number}.0' in counted


def test_a_bad_request_has_a_status(client: TestClient) -> None:
    for query in (
        {"figure": ["loss"] * 25}, {"figure": ["loss?q=" + "a" * 5_000]}, {}, {"figure": ["loss"], "incarnation": "x"},
    ):  # fmt: skip
        answer = client.get(PATH, params=query)
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_parameter"), query
    answer = client.get("/api/v1/runs/99/figures?figure=loss")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_run")


def test_all_together_are_bounded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their cells, and in the time they take."""
    found = lines(client, *["layers?columns=2000&rows=1000"] * 6)
    assert ["answer" in each for each in found] == [True] * 4 + [False] * 2
    assert found[4]["refused"]["code"] == "too_much"
    monkeypatch.setattr("rangewatch_server.routes.figures.TOGETHER_LIMIT_S", 0.0)
    found = lines(client, "loss", "timeline")
    assert [each["refused"]["code"] for each in found] == ["time_limit"] * 2


def built_by(monkeypatch: pytest.MonkeyPatch, build: Any) -> None:
    monkeypatch.setitem(figures.BY_NAME, "odd", Figure(name="odd", title="", help="", data="", build=build))


def test_a_statement_that_fails_ends_nothing_but_its_figure(
    either: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built_by(monkeypatch, lambda run, params: run.connection.execute(text("SELECT * FROM nothing_there")))
    with caplog.at_level(logging.ERROR, "rangewatch.server"):
        first, second, third = lines(either, "loss", "odd", "loss")
    assert (second["status"], second["refused"]["code"]) == (500, "internal")
    assert "nothing_there" not in second["refused"]["error"]
    assert "a request failed" in caplog.text
    assert first["answer"] == third["answer"]


def test_reads_that_take_too_long_end_nothing_but_their_figure(
    either: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) SELECT MAX(i) FROM n"
    )
    built_by(monkeypatch, lambda run, params: run.connection.execute(text(endless)).all())
    monkeypatch.setattr("rangewatch_server.core.deadline.READ_LIMIT_S", 2.0)
    first, second, third = lines(either, "loss", "odd", "loss")
    assert (second["status"], second["refused"]["code"]) == (503, "time_limit")
    assert first["answer"] == third["answer"]


def test_a_run_that_goes_away_meanwhile_is_said_in_what_is_left(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(run: Any, params: Any) -> dict[str, Any]:
        monkeypatch.setattr("rangewatch_server.routes.dependencies.MAX_ID", 0)  # no run is there any more
        raise ApiError(404, "nothing_there", "nothing was observed there")

    built_by(monkeypatch, build)
    first, *found = lines(client, "loss", "odd", "loss", "timeline")
    assert first["answer"]
    assert [each["refused"]["code"] for each in found] == ["nothing_there", "unknown_run", "unknown_run"]


def test_damage_is_told_of_the_figure_that_it_is_in(either: TestClient, database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        columns = tables.tiles.c
        broken = update(tables.tiles).where(columns.part == "ranges", columns.level == 0, columns.tile == 2)
        assert connection.execute(broken.values(payload=b"RWT1 and no more")).rowcount
    engine.dispose()
    inside, outside = "layers?start=100&stop=200", "layers?start=0&stop=60"
    found = lines(either, inside, outside, inside)
    reported = [each["answer"]["meta"].get("damaged_tiles") for each in found]
    assert reported[0] and reported[1] is None and reported[2] == reported[0]


def test_nothing_more_is_built_for_a_client_that_has_gone(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    has_left, built = threading.Event(), []

    def build(run: Any, params: Any) -> dict[str, Any]:
        built.append(params)
        if len(built) == 2:
            assert has_left.wait(30)
        return {"figure": {}, "meta": {}}

    built_by(monkeypatch, build)
    in_own_loop(lambda: left_after_a_line(client.app, has_left))
    assert len(built) <= 2


async def left_after_a_line(app: Any, has_left: threading.Event) -> None:
    """A request for 20 figures whose client goes when the first has come."""
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])
    has_line = asyncio.Event()

    async def receive() -> dict[str, Any]:
        for message in asked:
            return message
        await has_line.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message.get("body"):
            has_line.set()

    query = "&".join(["figure=odd"] * 20).encode()
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": PATH, "raw_path": PATH.encode(), "query_string": query,
        "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    has_left.set()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # the thread's


def test_parameters_are_those_of_one_figure_alone() -> None:
    assert figures_api.parsed("") == figures_api.Asked()
    found = figures_api.parsed("start=1&stop=5&rank=3&kind=output&kind=grad&closed=a.b&columns=1&columns=7&q=a%26b%3Fc")
    assert (found.start, found.stop, found.rank, found.kind, found.closed) == (1, 5, "3", ["output", "grad"], ["a.b"])
    assert (found.columns, found.q) == (7, "a&b?c")
