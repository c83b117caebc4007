"""Findings name the rows of the data that their step was made of, where the loop said them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import BatchRows, Failed, RowLoss
from rangewatch_server.rules.machine import rank_failed
from rangewatch_server.rules.nonfinite import first_nonfinite, loss_nonfinite
from tests.server.rules.conftest import Recording, tensor


def rows(step: int, **details: Any) -> Any:
    return events.event(BatchRows(**details), 1, step)


def nan_loss(recording: Recording, rank: int = 0, **more: Any) -> None:
    loss = np.ones(100)
    loss[60:] = np.nan
    recording.write([tensor("a")], 100, series={"loss": loss}, rank=rank, **more)


def test_ids_and_the_row_whose_loss_stands_out(recording: Recording) -> None:
    details = BatchRows((17, "a/b.png", 203), 32, largest=(RowLoss(203, 8100.0), RowLoss(17, 250.0)), median=200.0)
    nan_loss(recording, events=[events.event(details, 1, 60), rows(59, ids=(1, 2), count=2)])
    (found,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert found.evidence[-1] == (
        "The batch of step 60 on rank 0 was made of the rows 17, a/b.png, 203 and 29 more. "
        "Row 203 had a loss of 8.1e+03, 40.5 times the median."
    )


def test_a_row_that_is_nan_and_others_that_are_not(recording: Recording) -> None:
    nan_loss(
        recording, events=[rows(60, ids=(5, 6), count=2, largest=(RowLoss(6, "NaN"), RowLoss(5, 0.5)), median=0.5)]
    )
    (found,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert found.evidence[-1].endswith("Row 6 had a loss of NaN, others of the batch 0.5 (median).")


def test_where_no_row_stands_out_that_is_said(recording: Recording) -> None:
    nan_loss(recording, events=[rows(60, loss_count=2, largest=(RowLoss(0, 0.7), RowLoss(1, 0.6)), median=0.65)])
    (found,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert found.evidence[-1] == (
        "Step 60 on rank 0 had 2 rows. No row stands out: the losses reach 0.7, with a median of 0.65."
    )


def test_the_rank_s_own_and_of_no_other_step(recording: Recording) -> None:
    recording.write(
        [tensor("a")], 100, series={"loss": np.ones(100)}, world_size=2, events=[rows(60, ids=(1,), count=1)]
    )
    nan_loss(recording, rank=1, world_size=2, events=[rows(60, ids=(9,), count=1), rows(61, ids=(3,), count=1)])
    (found,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert found.evidence[-1] == "The batch of step 60 on rank 1 was made of the rows 9."


def test_of_a_first_nan_and_of_a_rank_that_failed(recording: Recording) -> None:
    nan_count = np.zeros((2, 40))
    nan_count[1, 30:] = 4
    failed = events.event(Failed(), 1, 39, "IndexError: 9")
    told = [rows(30, ids=(7, 8), count=2), failed, rows(39, ids=(4,), count=1)]
    recording.write([tensor("a"), tensor("b", call_index=1)], 40, {"nan_count": nan_count}, events=told)
    (found,) = recording.diagnose(first_nonfinite.RULE).findings
    assert "The batch of step 30 on rank 0 was made of the rows 7, 8." in found.evidence
    (found,) = recording.diagnose(rank_failed.RULE).findings
    assert "The batch of step 39 on rank 0 was made of the rows 4." in found.evidence


@pytest.mark.parametrize("data", [{}, {"ids": "x", "largest": 3}, {"ids": [[1], None], "median": "m"}])
def test_what_cannot_be_read_says_nothing(recording: Recording, data: dict[str, Any]) -> None:
    nan_loss(recording, events=[events.Event(BatchRows.KIND, 1, 60, "", data)])
    (found,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert len(found.evidence) == 2
