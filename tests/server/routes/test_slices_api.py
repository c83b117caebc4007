"""Slices over HTTP against numpy: exact rectangles, merged columns, derived values, what is refused, the time limit."""

from __future__ import annotations

import base64
import itertools
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from starlette.testclient import TestClient

from rangewatch import statistics
from rangewatch_server.core import deadline
from rangewatch_server.core.deadline import TimeLimitReached
from rangewatch_server.core.settings import Settings
from rangewatch_server.http import app
from rangewatch_server.numerics.headroom import State
from rangewatch_server.views.exports import rectangles
from tests.server.opened_store import Store
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

RANKS, TENSORS, STEPS = 3, 6, 700
RESTART = 400  # rank 1 starts anew from here, and what its first process said of later steps is not shown
LAST_OF_RANK_2 = 500
STATISTICS = {each.name: each for each in statistics.ALL if each.name != "nonfinite_ns"}
UFUNCS = {"max": np.maximum, "min": np.minimum, "sum": np.add}
CHECKSUMS = ("checksum_max", "checksum_min", "axis_checksum")
FULL = ("full_numel", "amin", "zero_count", "subnormal_count", "sum_sq")
SAME = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def made(seed: int) -> dict[str, np.ndarray]:
    """What one process sends: (tensors, steps) of each statistic, the identity where it saw or measured nothing."""
    random = np.random.default_rng(seed)
    shape = (TENSORS, STEPS)
    seen, full = random.random(shape) < 0.9, np.arange(STEPS) % 10 == 0
    bad = random.random(shape) < 0.05
    columns = {
        "call_count": random.integers(1, 4, shape), "numel": np.full(shape, 32.0),
        "amax": random.random(shape) * 60_000,
        "nan_count": np.where(bad, random.choice([0, 1, 32], shape), 0), "inf_count": np.zeros(shape),
        "full_numel": np.full(shape, 32.0), "amin": random.random(shape) * 1e-4,
        "zero_count": random.integers(0, 5, shape), "subnormal_count": random.integers(0, 5, shape),
        "sum_sq": random.integers(1, 1_000, shape) / 8,
    }  # fmt: skip
    columns["checksum_max"] = columns["checksum_min"] = random.integers(1, 2**53, shape).astype(float)
    for name in ("axis_checksum", "axis_balance"):
        columns[name] = random.integers(1, 2**32, shape).astype(float)
    for each in (*statistics.BESIDE_EPS, *statistics.OF_UPDATES):
        columns[each.name] = random.integers(0, 5, shape).astype(float)
    columns["inf_count"][bad & (columns["nan_count"] == 0)] = 1
    columns["amax"][columns["nan_count"] == 32] = 0
    checked = random.random(shape) < 0.2
    for name in columns:
        there = seen & (full if name in FULL else checked if name in CHECKSUMS else True)
        columns[name] = np.where(there, columns[name], STATISTICS[name].identity)
    return columns


def send(run: Run) -> dict[str, np.ndarray]:
    """Sends the run; what is shown of it, (ranks, tensors, steps)."""
    known = catalogue(TENSORS)
    shown = [made(rank) for rank in range(RANKS)]
    ends = {0: STEPS, 1: RESTART + 50, 2: LAST_OF_RANK_2}
    for rank, end in ends.items():
        run.post(opening(known, rank=rank, world_size=RANKS))
        run.post(batch(known, 0, range(end), {n: v[:, :end] for n, v in shown[rank].items()}, rank=rank))
    again = made(100)
    run.post(opening(known, rank=1, incarnation="b", world_size=RANKS))
    late = {name: values[:, RESTART:] for name, values in again.items()}
    run.post(batch(known, 0, range(RESTART, STEPS), late, rank=1, incarnation="b"))
    for name in STATISTICS:
        shown[1][name][:, RESTART:] = again[name][:, RESTART:]
        shown[2][name][:, LAST_OF_RANK_2:] = STATISTICS[name].identity
    return {name: np.stack([each[name] for each in shown]) for name in STATISTICS}


class Sliced:
    """A run and what is shown of it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.sent = send(run)

    def get(self, **parameters: Any) -> dict[str, Any]:
        query = {name: value for name, value in parameters.items() if value is not None}
        return self.run.get(f"/slice?{urlencode(query, doseq=True)}")


@pytest.fixture(scope="module")
def small(module_run: Run) -> Sliced:
    return Sliced(module_run)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def either(request: pytest.FixtureRequest) -> Sliced:
    """The same on each database."""
    if request.param == "sqlite":
        return request.getfixturevalue("small")
    server = request.getfixturevalue("start_server")(db=request.getfixturevalue("postgres_url"))
    return Sliced(Run(server, "on PostgreSQL"))


def merged(values: np.ndarray, name: str, axes: tuple[int, ...]) -> np.ndarray:
    return UFUNCS[STATISTICS[name].merge].reduce(values, axis=axes)


def shown(found: dict[str, np.ndarray], name: str) -> list[list[float | None]]:
    """As the API shows it: null where not observed, not measured, or nothing was finite."""
    unknown = found["call_count"] == 0
    if name in FULL and name != "full_numel":
        unknown = unknown | (found["full_numel"] == 0)
    if name == "amax":
        unknown = unknown | (found["numel"] == found["nan_count"] + found["inf_count"])
    if name in CHECKSUMS:
        unknown = unknown | (found[name] == STATISTICS[name].identity)
    if name == "call_count":
        unknown = np.zeros_like(unknown)
    return [
        [None if u else float(v) for u, v in zip(*row, strict=True)] for row in zip(unknown, found[name], strict=True)
    ]


@st.composite
def ranges(draw: st.DrawFn, size: int) -> tuple[int, int]:
    first = draw(st.integers(0, size - 1))
    return first, draw(st.integers(first + 1, size))


AXES = {"step,tensor": (0,), "step,rank": (1,), "rank,tensor": (2,)}


def test_any_rectangle_is_exactly_what_was_sent(either: Sliced) -> None:
    @SAME
    @given(
        st.sampled_from(sorted(AXES)), ranges(RANKS), ranges(TENSORS), ranges(STEPS),
        st.lists(st.sampled_from(sorted(STATISTICS)), min_size=1, max_size=3, unique=True),
    )  # fmt: skip
    def check(axes: str, ranks: Any, tensors: Any, steps: Any, names: list[str]) -> None:
        found = either.get(
            axes=axes, rank=f"{ranks[0]}-{ranks[1] - 1}", tensor=f"{tensors[0]}-{tensors[1] - 1}",
            start=steps[0], stop=steps[1], statistic=names,
        )  # fmt: skip
        inside = np.s_[slice(*ranks), slice(*tensors), slice(*steps)]
        expected = {name: merged(values[inside], name, AXES[axes]) for name, values in either.sent.items()}
        for name in names:
            assert found["values"][name] == shown(expected, name), name
        assert (np.array(found["states"]) == State.NAN).tolist() == (expected["nan_count"] > 0).tolist()
        assert (np.array(found["states"]) == State.NOT_OBSERVED).tolist() == (expected["call_count"] == 0).tolist()

    check()


def test_merged_columns_are_merges_by_rule(either: Sliced) -> None:
    @SAME
    @given(ranges(RANKS), ranges(STEPS), st.integers(1, 60), st.sampled_from(sorted(STATISTICS)))
    def check(ranks: Any, steps: Any, columns: int, name: str) -> None:
        found = either.get(
            rank=f"{ranks[0]}-{ranks[1] - 1}", start=steps[0], stop=steps[1], columns=columns, statistic=name
        )
        starts = found["columns"]["steps"]
        assert starts[0] == steps[0]
        assert all(start % found["steps_per_column"] == 0 for start in starts[1:])
        assert len(starts) <= max(columns, 2)  # one column may be cut in two by a multiple of its width
        inside = {each: values[slice(*ranks), :, slice(*steps)] for each, values in either.sent.items()}
        edges = np.array(starts) - steps[0]
        expected = {
            each: UFUNCS[STATISTICS[each].merge].reduceat(merged(values, each, (0,)), edges, axis=1)
            for each, values in inside.items()
        }
        assert found["values"][name] == shown(expected, name)

    check()


def test_a_merged_column_has_the_step_of_its_amax(small: Sliced) -> None:
    for rank, columns in (("0", 20), ("0", 30), ("0", 300), ("0-1", 30), ("all", 30)):  # whole tiles' columns, and not
        found = small.get(rank=rank, columns=columns)
        ranks = slice({"0": 1, "0-1": 2, "all": RANKS}[rank])
        amax = small.sent["amax"][ranks].max(axis=0)
        bad = (small.sent["nan_count"] + small.sent["inf_count"])[ranks].max(axis=0) > 0
        edges = [*found["columns"]["steps"], STEPS]
        for tensor in range(TENSORS):
            for column, (low, high) in enumerate(itertools.pairwise(edges)):
                inside = amax[tensor, low:high]
                assert found["values"]["amax_step"][tensor][column] == low + int(inside.argmax())
                first = np.flatnonzero(bad[tensor, low:high])
                expected = low + int(first[0]) if len(first) else None
                assert found["values"]["nonfinite_step"][tensor][column] == expected


def test_derived_values_are_those_of_the_step_page(small: Sliced) -> None:
    names = ["amax", "amin", "headroom_bits", "floor_room_bits", "rms", "zero_fraction", "subnormal_fraction"]
    for step in (11, *range(0, 120, 10)):  # the full set is taken at every tenth
        found = small.get(axes="step,tensor", rank=1, start=step, stop=step + 1, statistic=names)
        frames = {frame["tensor"]: frame for frame in small.run.get(f"/step?step={step}&rank=1")["frames"]}
        assert len(frames) > 1
        for name in names:
            for row, tensor in enumerate(found["rows"]["tensors"]):
                assert found["values"][name][row][0] == pytest.approx(frames.get(tensor, {}).get(name)), (name, step)


def test_merged_tensors_have_the_least_headroom(small: Sliced) -> None:
    each = small.get(axes="step,tensor", rank=0, statistic="headroom_bits", stop=100)["values"]["headroom_bits"]
    least = small.get(axes="step,rank", rank=0, statistic="headroom_bits", stop=100)["values"]["headroom_bits"]
    for step in range(100):
        known = [row[step] for row in each if row[step] is not None]
        assert least[0][step] == min(known)


def test_rank_by_tensor_at_one_step_and_its_figure(small: Sliced) -> None:
    found = small.get(axes="rank,tensor", step=450, statistic="headroom_bits")
    assert found["rows"] == {"axis": "rank", "ranks": [0, 1, 2]}
    assert (found["start"], found["stop"], found["steps_per_column"], found["level"]) == (450, 451, 1, 0)
    figure = small.run.get("/figures/ranks?start=450&stop=451")
    z = np.frombuffer(base64.b64decode(figure["figure"]["data"][0]["z"]["bdata"]), "<f4").reshape(RANKS, TENSORS)
    states = np.frombuffer(base64.b64decode(figure["meta"]["states"]["bdata"]), "u1").reshape(RANKS, TENSORS)
    assert states.tolist() == found["states"]
    values = np.array(found["values"]["headroom_bits"], float)
    drawn = np.isin(states, (State.VALUE, State.SATURATED))
    assert drawn.sum() > 5
    assert np.array_equal(z[drawn], np.minimum(values[drawn], 16).astype(np.float32))
    assert [column["tensor"] for column in figure["meta"]["tensors"]] == found["columns"]["tensors"]
    whole = small.run.get("/figures/ranks?columns=2&rows=2")["meta"]
    assert [row["count"] for row in whole["rows"]] == [2, 1]
    assert whole["tensors"][0]["tensors"] == [0, 2]
    assert whole["note"] == f"each cell: worst of {STEPS} steps"


def test_kinds_and_names_choose_tensors(small: Sliced) -> None:
    assert small.get(kind="grad", stop=5)["rows"]["tensors"] == [2, 5]
    assert small.get(q="blocks.4", stop=5)["rows"]["labels"] == ["blocks.4.ff grad_output"]
    assert small.get(q="no such name", stop=5)["values"]["amax"] == []
    assert small.get(axes="step,rank", rank=1, tensor=3, stop=5)["merged"] == {"tensors": [3]}
    assert small.get(rank="0-1", stop=5)["merged"] == {"ranks": [0, 1]}
    assert small.get(start=5_000)["columns"]["steps"] == []


def test_star_is_every_statistic(small: Sliced) -> None:
    found = small.get(axes="rank,tensor", step=10, statistic="*")["values"]
    assert set(found) == {each.name for each in statistics.ALL}


REFUSED = [
    ("axes=step", 422, "bad_parameter", "axes must be step,tensor or"),
    ("axes=step,rank,tensor", 422, "bad_parameter", "format=csv"),
    ("axes=rank,tensor&columns=5", 422, "bad_parameter", "columns merges steps"),
    ("step=5", 422, "bad_parameter", "give start and stop"),
    ("axes=rank,tensor&step=5&start=3", 422, "bad_parameter", "either step, or start and stop"),
    ("start=-1", 422, "bad_parameter", "start:"),
    ("columns=0", 422, "bad_parameter", "columns:"),
    ("columns=1e3", 422, "bad_parameter", "columns:"),
    ("statistic=median", 422, "bad_parameter", "'median' is not one of *, call_count"),
    ("&".join(["statistic=amax"] * 401), 422, "bad_parameter", "statistic is given 401 times; at most 400"),
    ("format=pickle", 422, "bad_parameter", "'json', 'csv', 'parquet' or 'arrow'"),
    ("kind=nonsense", 422, "bad_parameter", "is not one of output"),
    ("rank=x", 422, "bad_parameter", "rank must be a number, first-last or all"),
    ("rank=0-", 422, "bad_parameter", "rank must be a number"),
    ("rank=%C2%B2", 422, "bad_parameter", "rank must be a number"),
    ("rank=9", 404, "unknown_rank", "no rank 9"),
    ("rank=0-9", 404, "unknown_rank", "no rank 9"),
    ("tensor=6", 404, "unknown_tensor", "no tensor 6"),
    ("tensor=../../etc/passwd", 422, "bad_parameter", "tensor must be a number"),
]


def test_bad_parameters_say_what_to_give(small: Sliced) -> None:
    for query, status, code, says in REFUSED:
        for form in ("json", "csv") if "axes=step,rank,tensor" not in query and "format" not in query else ("",):
            answer = small.run.ask(f"/slice?{query}" + (f"&format={form}" if form else ""))
            assert (answer.status_code, answer.json()["code"]) == (status, code), query
            assert says in answer.json()["error"]
            assert "\n" not in answer.json()["error"]
    assert small.run.server.client.get("/api/v1/runs/999999/slice").json()["code"] == "unknown_run"


def test_a_slice_too_large_for_json_says_what_to_do(run: Run) -> None:
    known = catalogue(100)
    run.post(opening(known))
    run.post(batch(known, 0, range(rectangles.MAX_VALUES // 100 + 1)))
    answer = run.ask("/slice")
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "100 x 2501 cells" in answer.json()["error"]
    assert "columns=" in answer.json()["error"]
    assert "format=arrow" in answer.json()["error"]
    assert len(run.get("/slice?stop=2500")["columns"]["steps"]) == 2_500


def test_merged_steps_of_an_agent_stand_at_their_row(run: Run) -> None:
    known = catalogue(1)
    first = opening(known)
    info = type(first.info)(**{f: getattr(first.info, f) for f in first.info.__struct_fields__} | {"ship_every": 8})
    run.post(type(first)(info, known))
    run.post(batch(known, 0, np.arange(7, 80, 8), {"amax": np.arange(1.0, 11.0)[None]}))
    found = run.get("/slice?start=8&stop=24")
    assert found["ship_every"] == 8
    assert found["values"]["amax"] == [[None] * 7 + [2.0] + [None] * 7 + [3.0]]
    at = run.get("/slice?axes=rank,tensor&step=11")
    assert (at["start"], at["stop"], at["values"]["amax"]) == (8, 16, [[2.0]])


SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT count(*) FROM generate_series(1, 1000000000000)",
}
LONG = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT count(*) FROM n"


def test_the_time_limit_ends_a_statement_that_runs(store: Store) -> None:
    with store.engines.reader.connect() as connection:
        with pytest.raises(TimeLimitReached) as raised, deadline.limited(connection, 0.1):
            connection.execute(text("SELECT 1"))
            connection.execute(text(SLOW[connection.dialect.name]))
        connection.rollback()
        assert (raised.value.status, raised.value.code) == (503, "time_limit")
        assert "start=, stop=" in str(raised.value)
        assert connection.execute(text(LONG)).scalar() == 300_000  # nothing is left on the connection
    deadline.check()


def test_the_time_limit_ends_our_own_work(store: Store) -> None:
    with store.engines.reader.connect() as connection:
        with pytest.raises(TimeLimitReached), deadline.limited(connection, -1.0):
            deadline.check()
        with deadline.limited(connection, 30):
            deadline.check()


def test_other_errors_of_the_database_stay_what_they_are(store: Store) -> None:
    with store.engines.reader.connect() as connection, suppress(DBAPIError):
        with deadline.limited(connection, 30):
            connection.execute(text("SELECT * FROM no_such_table"))
        raise AssertionError("not reached")


def test_requests_past_the_limit_are_answered_503(
    database_url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = catalogue(3)
    store.send(opening(known))
    store.send(batch(known, 0, range(100)))
    with TestClient(app.create_app(Settings(db=database_url)), base_url="http://127.0.0.1") as client:
        for path in ("slice", "slice?format=csv", "figures/layers", "step"):
            with monkeypatch.context() as patch:
                patch.setattr(deadline, "READ_LIMIT_S", -1.0)
                answer = client.get(f"/api/v1/runs/1/{path}")
                assert (answer.status_code, answer.json()["code"]) == (503, "time_limit"), path
            assert client.get(f"/api/v1/runs/1/{path}").status_code == 200, path
