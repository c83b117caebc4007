"""Clocks that jump, restarts, two jobs of one name, and sizes at the edge of what is allowed."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from rangewatch.wire.records import Catalogue, TensorEntry
from rangewatch_server.ingest.commands import Ask
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.routes.commands import newest_commands
from rangewatch_server.store.batch_checks import MAX_NAME_BYTES
from rangewatch_server.views import overview
from tests.server.opened_store import Store
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(2)
HOUR_NS = 3_600 * 10**9
TRACE = {"kind": "trace", "steps": 1, "modules": []}


@pytest.fixture
def store(sqlite_url: str, open_store: Callable[[str], Store]) -> Store:
    return open_store(sqlite_url)


class Clock:
    """`time.time_ns` of everything in this process, some hours off."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.off_ns = 0
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + self.off_ns)

    def jump(self, hours: int) -> None:
        self.off_ns += hours * HOUR_NS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def state(store: Store) -> str:
    with store.queries.read() as reader:
        return overview.state(reader.run(1))


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_jumps_makes_no_dead_rank_live(store: Store, clock: Clock, hours: int) -> None:
    store.send(opening(KNOWN))
    store.send(batch(KNOWN, 0, range(4)))
    assert state(store) == "live"
    clock.jump(hours)
    assert state(store) == "stale", "nobody has spoken since the jump"
    store.send(batch(KNOWN, 1, range(4, 8)))
    assert state(store) == "live"


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_jumps_does_not_stop_commands(store: Store, clock: Clock, hours: int) -> None:
    store.send(opening(KNOWN))
    store.send(batch(KNOWN, 0, range(4)))
    store.writer.command(Ask(1, TRACE, None, 1)).result(30)
    clock.jump(hours)
    before = store.send(batch(KNOWN, 1, range(4, 8))).commands
    assert len(before) == (0 if hours > 0 else 1), "expired, or still waiting for the rank"
    store.writer.command(Ask(1, TRACE, None, 1)).result(30)
    assert len(store.send(batch(KNOWN, 2, range(8, 12))).commands) == len(before) + 1
    with store.queries.read() as reader:
        newest = newest_commands(reader.run(1), 1)[0]
    assert newest["states"][0]["state"] == "pending"
    assert newest["expires_ns"] - newest["created_ns"] == 600 * 10**9


def test_a_clock_put_back_between_two_processes_changes_no_history(store: Store, clock: Clock) -> None:
    """The newer is who came later, not who says so."""
    store.send(opening(KNOWN, world_size=4))
    store.send(batch(KNOWN, 0, range(100), {"amax": 2.0}))
    clock.jump(-1)
    store.send(opening(KNOWN, incarnation="b", world_size=2))
    store.send(batch(KNOWN, 0, range(50, 60), {"amax": 4.0}, incarnation="b"))
    with store.queries.read() as reader:
        run = reader.run(1)
        shown = run.slice(RANGES, [0], 0, 0, 60, ["amax"]).columns["amax"][0]
        assert shown.tolist() == [2.0] * 50 + [4.0] * 10
        assert (overview.world_size(run), run.last_step) == (2, 59)


def test_both_histories_of_a_restart_are_kept(store: Store) -> None:
    """The newer is shown from where it began. What it replaced is in the database, and no page shows it yet."""
    store.send(opening(KNOWN))
    store.send(batch(KNOWN, 0, range(300), {"amax": 2.0}))
    store.send(opening(KNOWN, incarnation="b"))
    store.send(batch(KNOWN, 0, range(100, 150), {"amax": 4.0}, incarnation="b"))
    with store.queries.read() as reader:
        run = reader.run(1)
        rank = run.ranks[0]
        assert [(row.first_step, row.last_step) for row in rank.rows] == [(0, 299), (100, 149)]
        assert [(row.ordinal, end) for row, end in rank.visible()] == [(2, 2**62), (1, 100)]


def test_two_jobs_of_one_name_are_two_and_it_is_said(store: Store) -> None:
    """Both claim rank 0 and go on sending: each is stored as it came, and the page is told that two are live."""
    for sequence in range(2):
        for name, amax in (("a", 2.0), ("b", 4.0)):
            if sequence == 0:
                made = opening(KNOWN, incarnation=name)
                store.send(msgspec.structs.replace(made, info=msgspec.structs.replace(made.info, host=f"node {name}")))
            store.send(batch(KNOWN, sequence, range(sequence * 4, sequence * 4 + 4), {"amax": amax}, incarnation=name))
    with store.queries.read() as reader:
        run = reader.run(1)
        assert [row.contiguous for row in run.ranks[0].rows] == [1, 1]
        assert (run.slice(RANGES, [0], 0, 0, 8, ["amax"]).columns["amax"] == 4).all(), "the newer is shown"
        (reported,) = overview.run_detail(run)["ranks"]
        assert (reported["state"], reported["incarnation"], reported["also_live"]) == ("live", 2, 1)
        assert (reported["host"], reported["also_live_hosts"]) == ("node b", ["node a"])


def test_ten_thousand_tensors(run: Run) -> None:
    known = catalogue(10_000)
    amax = np.ones((10_000, 70))
    amax[7_654, 33] = 65504.0
    assert run.post(opening(known), batch(known, 0, range(70), {"amax": amax})).status_code == 202
    assert len(run.get("/tensors")["tensors"]) == 10_000
    meta = run.get("/figures/layers?rows=1000")["meta"]
    assert (len(meta["rows"]), sum(row["count"] for row in meta["rows"])) == (1_000, 10_000)
    assert [run.get("/locate")[key] for key in ("step", "tensor")] == [33, 7_654]
    assert run.get()["last_step"] == 69


def test_names_of_4_kib(served: Server) -> None:
    """In letters of three bytes each, as long as names may be; a byte more is refused, and says so."""
    name = "界" * (MAX_NAME_BYTES // 3)
    run = Run(served, name)
    known = Catalogue(KNOWN.statistics, (TensorEntry(name, "output", 0, "float16", (4,), 0, name),))
    assert run.post(opening(known), batch(known, 0, range(70), series={name: 1.0})).status_code == 202
    about = run.get()
    assert (about["name"], about["last_step"], about["series"]) == (name, 69, [name])
    assert run.get("/tensors")["tensors"][0]["fqn"] == name
    assert run.get("/step?step=3")["frames"][0]["fqn"] == name
    assert run.get("/figures/layers")["meta"]["rows"][0]["label"].startswith(name)
    longer = served.post(opening(KNOWN, run=name + "xxxx"))
    assert (longer.status_code, longer.json()["code"]) == (400, "bad_header")


@pytest.mark.parametrize(
    ("database_url", "runs"),
    [
        pytest.param("sqlite", 100, marks=pytest.mark.slow),
        pytest.param("sqlite", 1_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
        pytest.param("postgres", 20, marks=pytest.mark.slow),  # which makes two partitions for each
        pytest.param("postgres", 1_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
    indirect=["database_url"],
)
def test_a_great_many_runs_are_listed(
    database_url: str, runs: int, open_store: Callable[[str], Store], start_server: Callable[..., Server]
) -> None:
    store = open_store(database_url)
    store.send_all(
        [
            message
            for number in range(runs)
            for message in (opening(KNOWN, f"run {number}"), batch(KNOWN, 0, range(4), run=f"run {number}"))
        ]
    )
    store.close()
    server, listed = start_server(db=database_url), []
    while page := server.get(f"/api/v1/runs?offset={len(listed)}")["runs"]:
        listed += page
    assert [run["name"] for run in listed] == [f"run {number}" for number in reversed(range(runs))]
    assert {run["last_step"] for run in listed} == {3}
