"""A rank that goes back after a restart: the newer history is shown, the older one is kept and can be asked for."""

from __future__ import annotations

import base64
import csv
import io
from typing import Any

import numpy as np
import pytest
from pyarrow import ipc, parquet

from rangewatch.wire.records import Event
from rangewatch_server.numerics.headroom import State
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
STEPS, BACK = 300, 100


@pytest.fixture(scope="module")
def restarted(module_run: Run) -> Run:
    """Two ranks; rank 1 overflows at step 250, starts again from step 100 and goes on to 200 without any."""
    run = module_run
    for rank in range(2):
        run.post(opening(KNOWN, rank=rank, world_size=2))
        bad = [[float(rank == 1 and step == 250) for step in range(STEPS)]] * 3
        columns = {"amax": rank + 1.0, "inf_count": bad}
        run.post(batch(KNOWN, 0, range(STEPS), columns, rank=rank, events=(Event("failed", 1, STEPS, "first"),)))
    run.post(opening(KNOWN, rank=1, incarnation="b", world_size=2))
    run.post(batch(KNOWN, 0, range(BACK, 200), {"amax": 9.0}, rank=1, incarnation="b"))
    return run


def amax(run: Run, query: str) -> list[list[float | None]]:
    return run.get(f"/slice?axes=rank,step&tensor=0&statistic=amax&{query}")["values"]["amax"]


def test_both_histories_can_be_seen(restarted: Run) -> None:
    for query, second in (("", [2.0] * 100 + [9.0] * 100 + [None] * 100), ("incarnation=1", [2.0] * 300)):
        assert amax(restarted, f"start=0&stop=300&{query}") == [[1.0] * 300, second], query
    assert amax(restarted, "start=0&stop=300&incarnation=2") == amax(restarted, "start=0&stop=300")
    merged = restarted.get("/slice?axes=tensor,step&statistic=inf_count&incarnation=1&start=240&stop=260")
    assert merged["values"]["inf_count"][0][10] == 1.0
    step = restarted.get("/step?step=250&rank=1&incarnation=1")
    assert step["first_nonfinite"] == 0 and not restarted.get("/step?step=250&rank=1")["observed"]


def test_every_route_of_the_run_knows_it(restarted: Run) -> None:
    ranks: Any = {query: restarted.get(query)["ranks"] for query in ("", "?incarnation=1")}
    assert [each["incarnation"] for each in ranks[""]] == [1, 2]
    assert [each["incarnation"] for each in ranks["?incarnation=1"]] == [1, 1]
    found = restarted.get("/figures/timeline?incarnation=1")
    states = found["meta"]["states"]
    shown = np.frombuffer(base64.b64decode(states["bdata"]), np.uint8).reshape(2, STEPS)
    assert np.argwhere(shown == State.INF).tolist() == [[1, 250]]
    assert restarted.get("/locate?incarnation=1&rank=1")["step"] == 250


def test_bad_ones_are_refused(restarted: Run) -> None:
    for value in ("x", "-1", "1.5", "9" * 10, "²"):
        answer = restarted.ask("", params={"incarnation": value})
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_parameter")
    nothing = restarted.get("?incarnation=0")
    assert nothing["ranks"] == []


@pytest.mark.parametrize("format_name", ["csv", "parquet", "arrow"])
def test_a_file_shows_the_history_that_was_asked_for(restarted: Run, format_name: str) -> None:
    """JSON gave the older one, and files the newer one without a word."""
    query = "/slice?axes=step,tensor&rank=1&tensor=0&statistic=amax&start=190&stop=210&incarnation={}"
    for incarnation in (1, 2):
        matrix = restarted.get(query.format(incarnation))
        answer = restarted.ask(query.format(incarnation) + f"&format={format_name}")
        assert f"-incarnation-{incarnation}-" in answer.headers["content-disposition"]
        wanted = [each for row in matrix["values"]["amax"] for each in row if each is not None]
        assert wanted and amax_of(answer.content, format_name) == wanted


def amax_of(content: bytes, format_name: str) -> list[float]:
    if format_name == "csv":
        return [float(row["amax"]) for row in csv.DictReader(io.StringIO(content.decode()))]
    file = io.BytesIO(content)
    table = parquet.read_table(file) if format_name == "parquet" else ipc.open_stream(file).read_all()
    values: list[float] = table["amax"].to_pylist()
    return values
