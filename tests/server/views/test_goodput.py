"""Goodput and MFU: what a run's time went into, by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch.wire.events import Flops, details_of
from rangewatch.wire.records import Event, RankInfo, StreamHeader
from tests.server.process import Run
from tests.server.records import batch, catalogue

KNOWN = catalogue(1)
BEGAN_S = 1_700_000_000.0


def send(
    run: Run, steps: range, began_s: float, *, incarnation: str = "a", step_s: float = 2.0, startup_s: float = 10.0,
    series: dict[str, Any] | None = None, events: tuple[Event, ...] = (),
) -> float:  # fmt: skip
    """One process: `startup_s` until its first step ends, which has no time, then a step each `step_s`. Its end."""
    info = RankInfo("run", 0, 1, 0, "host", incarnation, int(began_s * 1e9))
    at = np.arange(len(steps))
    ends = began_s + startup_s + at * step_s
    run.post(StreamHeader(info, KNOWN))
    for low in range(0, len(steps), 1_000):
        part = slice(low, low + 1_000)
        values = {"wall_time_s": ends} | {
            name: np.broadcast_to(each, at.shape) for name, each in (series or {}).items()
        }
        cut = {name: each[part] for name, each in values.items()}
        timed = steps[part] if low else steps[1:1_000]
        sent = batch(KNOWN, low // 500, steps[part], incarnation=incarnation, events=() if low else events, series=cut)
        rows = batch(KNOWN, low // 500 + 1, timed, incarnation=incarnation, series={"step_time_s": step_s})
        for each in (sent, msgspec.structs.replace(rows, ranges=None)):
            assert run.post(each).status_code == 202
    return float(ends[-1])


def test_a_run_without_a_hitch(run: Run) -> None:
    send(run, range(101), BEGAN_S)
    found = run.get()["goodput"]
    assert found["wall_s"] == pytest.approx(210) and found["counted_s"] == pytest.approx(200)
    assert found["share"] == pytest.approx(200 / 210)
    assert (found["skipped_steps"], found["replayed_steps"], found["starts"]) == (0, 0, 1)


def test_skipped_steps_do_not_count(run: Run) -> None:
    send(run, range(101), BEGAN_S, series={"skipped_step": (np.arange(101) % 10 == 5) * 1.0})
    found = run.get()["goodput"]
    assert (found["skipped_steps"], found["skipped_s"]) == (10, pytest.approx(20))
    assert found["share"] == pytest.approx(180 / 210)


def test_of_a_long_run_columns_hold_their_share(run: Run) -> None:
    send(run, range(5_001), BEGAN_S, series={"skipped_step": (np.arange(5_001) % 10 == 5) * 1.0})
    found = run.get()["goodput"]
    assert found["skipped_s"] == pytest.approx(1_000, rel=0.01)


def test_what_a_restart_did_again_and_the_time_between_do_not_count(run: Run) -> None:
    ended_s = send(run, range(101), BEGAN_S)
    send(run, range(80, 151), ended_s + 300, incarnation="b")
    found = run.get()["goodput"]
    # Steps 1 to 79 of the first process and 81 to 150 of the second; 20 and the step 80 were done again.
    assert (found["replayed_steps"], found["starts"]) == (21, 2)
    assert found["counted_s"] == pytest.approx(2 * (79 + 70))
    assert found["wall_s"] == pytest.approx(210 + 300 + 10 + 140)
    assert found["other_s"] == pytest.approx(found["wall_s"] - found["counted_s"])


def test_of_a_run_without_times_nothing_is_known(run: Run) -> None:
    run.post(StreamHeader(RankInfo("run", 0, 1, 0, "host", "a", 1), KNOWN), batch(KNOWN, 0, range(3)))
    found = run.get()
    assert found["goodput"] is None and found["mfu"] is None


def flops(**known: Any) -> tuple[Event, ...]:
    return (Event("flops", 1, 0, "", details_of(Flops(device="gpu", **known))),)


def test_mfu_of_declared_operations(run: Run) -> None:
    send(run, range(101), BEGAN_S, events=flops(per_step=4e14, peak=1e15))
    assert run.get()["mfu"]["share"] == pytest.approx(4e14 / 2 / 1e15)


def test_mfu_by_tokens_that_the_loop_logs(run: Run) -> None:
    send(run, range(101), BEGAN_S, events=flops(per_token=1e11, peak=1e15), series={"tokens": 4_000.0})
    found = run.get()["mfu"]
    assert (found["flops_per_step"], found["share"]) == (pytest.approx(4e14), pytest.approx(0.2))


@pytest.mark.parametrize("known", [{"per_step": 4e14}, {"per_token": 1e11, "peak": 1e15}, {"peak": 1e15}])
def test_where_one_of_both_is_missing_it_is_unknown(run: Run, known: dict[str, float]) -> None:
    send(run, range(101), BEGAN_S, events=flops(**known))
    assert run.get()["mfu"]["share"] is None
