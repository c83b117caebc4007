"""`rangewatch diagnose`: its exit status, and what it says of a run that did not end well or a server with a token."""

from __future__ import annotations

from typing import Any

import pytest

from rangewatch.wire.records import Event
from tests.agent.commands.command import typed
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)


def end(run: Run, event: Event) -> None:
    run.post(opening(KNOWN))
    run.post(batch(KNOWN, 0, [0, 1], events=(event,)))


@pytest.mark.parametrize(
    ("kind", "message", "data", "status", "says"),
    [
        ("failed", "ValueError: planted", {}, 1, "the run failed: Rank 0: ValueError: planted"),
        ("died", "died of signal 11 (SIGSEGV) in step 7", {"signal": 11}, 1, "the run died: Rank 0 died of signal 11"),
        ("failed", "KeyboardInterrupt", {"interrupted": True}, 0, "the run was interrupted"),
        ("finished", "", {}, 0, ""),
    ],
)
def test_a_run_that_did_not_end_well(run: Run, kind: str, message: str, data: Any, status: int, says: str) -> None:
    end(run, Event(kind, 1, 7, message, data))
    found, out, err = typed("diagnose", run.name, "--url", run.server.url)
    assert (found, err) == (status, "")
    assert ("Rank failed. " in out) == (kind == "failed" and status == 1)
    assert says in out and ("the run" in out) == bool(says)
    assert typed("diagnose", run.name, "--url", run.server.url, "--json")[0] == status


def test_the_report_of_a_run_that_failed_before_a_step_had_ended(run: Run) -> None:
    run.post(opening(KNOWN))
    run.post(batch(KNOWN, 0, [], events=(Event("failed", 1, 0, "ValueError: planted", {}),)))
    status, out, _ = typed("report", run.name, "--url", run.server.url)
    says = [f"No NaN or Inf in run {run.name}, no steps yet.", "The run failed: Rank 0: ValueError: planted"]
    assert (status, out.splitlines()[:2]) == (1, says)
    assert "What else is wrong: Rank failed." in out
