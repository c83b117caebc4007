"""Runs whose every value is known, sent to a real server as agents send them."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rangewatch import statistics
from rangewatch.wire.records import Batch, Catalogue, Event, RankInfo, StreamHeader, TensorEntry
from tests.browser import hand_made_health
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

LIMIT = 65_504.0  # largest finite float16
STEPS, TENSORS, SILENT_FROM = 200, 12, 150
VALUE, SATURATED, INF, NAN, ZERO, NOT_OBSERVED, STALE = range(7)
SATURATED_AT, INF_AT, NAN_AT, ZERO_FROM, HIDDEN = (0, slice(40, 60)), (3, 120), (4, 130), (5, 60), (1, slice(80, 100))
OVERFLOWS_FROM = 30
PEAK = (11, 150)  # one hot cell among calm ones
FAILURE = "RuntimeError: the data loader ended"
MARKUP = (
    "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "javascript:alert(3)", "<b>bold</b>",
    '<a href="javascript:alert(4)">link</a>', "&lt;i&gt;", "\u202eright to left\u202c", "\U0001f525 tensor", "%{y}",
)  # fmt: skip
LONG = "x" * 4_096


@dataclass
class Runs:
    """A server and the numbers of its runs."""

    server: Server
    states: int
    empty: int
    hostile: int
    partial: int
    health: int
    hung: int
    mismatch: int
    marked: int
    alerted: int


def bits(rank: int) -> np.ndarray:
    """(tensors, steps) headroom in bits of the `states` run, before its special places."""
    tensor, step = np.mgrid[0:TENSORS, 0:STEPS]
    return 2.5 + tensor + step / 400 + rank


def amax(rank: int) -> np.ndarray:
    """The magnitudes that give `bits`, with rank 0's special places in."""
    found = LIMIT / 2.0 ** bits(rank)
    if rank == 0:
        found[SATURATED_AT], found[PEAK] = 60_000, LIMIT / 2**1.5
        found[ZERO_FROM[0], ZERO_FROM[1] :] = 0
        found[HIDDEN] = 0
    return found


def states(rank: int) -> np.ndarray:
    """(tensors, steps) state of every cell of the `states` run."""
    found = np.full((TENSORS, STEPS), VALUE)
    if rank == 0:
        found[SATURATED_AT], found[INF_AT], found[NAN_AT], found[HIDDEN] = SATURATED, INF, NAN, NOT_OBSERVED
        found[ZERO_FROM[0], ZERO_FROM[1] :] = ZERO
    else:
        found[:, SILENT_FROM:] = STALE
    return found


def accept(server: Server, *messages: StreamHeader | Batch) -> None:
    """Post messages, each of which must be taken."""
    for message in messages:
        answer = server.post(message)
        assert answer.status_code == 202, answer.text


def number(server: Server, run: str) -> int:
    """A run's number by its name."""
    found: int = next(each["id"] for each in server.get("/api/v1/runs")["runs"] if each["name"] == run)
    return found


def make(path: Path) -> Runs:
    """Start a server on a new database and fill it."""
    server = Server(str(path), "--alerts-percent", "50")
    for run in ("marked", "alerted"):  # first: the rules look seconds later
        overflow(server, run)
    _states(server)
    accept(server, opening(catalogue(2), run="empty", world_size=4))
    _hostile(server)
    _partial(server)
    hand_made_health.send(server)
    _silence(path, run="states", rank=1)
    _silence(path, run="partial", rank=1)
    names = ("states", "empty", LONG, "partial", "health", "hung", "mismatch", "marked", "alerted")
    return Runs(server, *(number(server, run) for run in names))


def overflow(server: Server, run: str) -> None:
    """A run whose only layer, with markup for a name, is Inf from step 30 on."""
    known = Catalogue(statistics.ALL, (TensorEntry(MARKUP[0], "output", 0, "float16", (4, 8), 0, "Linear"),))
    bad = np.zeros((1, 40))
    bad[0, OVERFLOWS_FROM:] = 1
    accept(server, opening(known, run=run), batch(known, 0, range(40), {"inf_count": bad}, run=run))


def wait_for_alert(server: Server, run: int) -> int:
    """The run's number, once an alert of it stands."""
    while not server.get(f"/api/v1/runs/{run}/alerts")["alerts"]:
        time.sleep(0.02)
    return run


def _states(server: Server) -> None:
    known = catalogue(TENSORS)
    step = np.arange(STEPS)
    skipped = np.isin(step, (121, 131))
    series = {
        "loss": 2 + step / 100, "loss_scale": 65_536.0 / 2 ** np.cumsum(skipped), "skipped_step": skipped,
        "found_inf": skipped, "step_time_s": 0.25,
    }  # fmt: skip
    columns = {name: np.zeros((TENSORS, STEPS)) for name in ("inf_count", "nan_count")} | {
        "call_count": np.ones((TENSORS, STEPS)), "amax": amax(0),
    }  # fmt: skip
    columns["inf_count"][INF_AT], columns["nan_count"][NAN_AT], columns["call_count"][HIDDEN] = 1, 2, 0
    accept(server, opening(known, "states", world_size=2), batch(known, 0, step, columns, run="states", series=series))
    early = {"amax": amax(1)[:, :SILENT_FROM]}
    accept(
        server,
        opening(known, "states", rank=1, world_size=2),
        batch(known, 0, range(SILENT_FROM), early, run="states", rank=1),
    )


def _hostile(server: Server) -> None:
    """Every text that a user's code can choose, as markup, and a name of each greatest length."""
    names = (*MARKUP, LONG)
    tensors = tuple(TensorEntry(name, "output", 0, "float16", (4,), i, name) for i, name in enumerate(names))
    known = Catalogue(statistics.ALL, tensors)
    info = RankInfo(LONG, 0, 1, 0, MARKUP[0], "a", time.time_ns(), device=MARKUP[1])
    reported = dict.fromkeys(MARKUP, "<u>why</u>")
    events = (
        Event("not_observed", 1, 0, MARKUP[0], reported), Event("fault", 1, 0, MARKUP[1], {MARKUP[3]: 1}),
        Event("dropped", 1, 0, MARKUP[2], {MARKUP[4]: 2}), Event("failed", 1, 0, MARKUP[0]),
    )  # fmt: skip
    series = {"loss": 1.0, MARKUP[0]: 1.0}
    sent = batch(known, 0, range(30), {"inf_count": np.eye(len(names), 30)}, run=LONG, series=series, events=events)
    accept(server, StreamHeader(info, known), sent)


def _partial(server: Server) -> None:
    """Four ranks were meant to be there: rank 1 fell silent, rank 2 never came, rank 3 failed."""
    known = catalogue(4)
    failed = Event("failed", 1, 44, f"{FAILURE}\n  at line 3")
    for rank, steps, events in ((0, 60, ()), (1, 30, ()), (3, 45, (failed,))):
        sent = batch(known, 0, range(steps), run="partial", rank=rank, events=events)
        accept(server, opening(known, "partial", rank, world_size=4), sent)


def _silence(path: Path, run: str, rank: int) -> None:
    """As if a rank was last heard of a minute ago."""
    with sqlite3.connect(path, timeout=20) as database:
        changed = database.execute(
            "UPDATE streams SET last_seen_ns = last_seen_ns - 60000000000 "
            "WHERE rank = ? AND run_id = (SELECT id FROM runs WHERE name = ?)",
            (rank, run),
        ).rowcount
    database.close()
    assert changed == 1
