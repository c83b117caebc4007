"""Where NaN or Inf came from."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch_server.rules.nonfinite.first_nonfinite import RULE
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("a", call_index=0), tensor("b", call_index=1), tensor("b", "grad_output", 2), tensor("a", "grad", 3)]


def bad_at(steps: int, *cells: tuple[int, int], of: int = len(LAYERS)) -> np.ndarray:
    """(of, steps) counts with a one at each (tensor, step)."""
    counts = np.zeros((of, steps))
    for cell in cells:
        counts[cell] = 1
    return counts


def test_the_first_in_call_order_of_the_first_step(recording: Recording) -> None:
    recording.write(LAYERS, 200, {"inf_count": bad_at(200, (1, 150), (2, 150), (3, 150), (0, 151))})
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.rank, found.step) == ("b", "output", 0, 150)
    assert found.summary == "Step 150, rank 0: the output of b is the first to hold Inf."


def test_ranks_are_ordered_by_step_and_call(recording: Recording) -> None:
    for rank, cells in enumerate([[(1, 90)], [(0, 91)], [(0, 90)]]):
        recording.write(LAYERS, 100, {"nan_count": bad_at(100, *cells)}, rank=rank, world_size=3)
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.rank, found.step) == ("a", 2, 90)


def test_what_the_scaler_skips_is_no_alarm(recording: Recording) -> None:
    skipped = np.zeros(100)
    skipped[[10, 60]] = 1
    bad = bad_at(100, (2, 10), (3, 10), (3, 60))
    recording.write(LAYERS, 100, {"inf_count": bad}, series={"skipped_step": skipped}, loss_scaled=True)
    assert recording.diagnose(RULE).findings == ()


def test_a_gradient_that_nobody_skips_is(recording: Recording) -> None:
    skipped = np.zeros(100)
    skipped[10] = 1
    bad = bad_at(100, (3, 10), (3, 60))
    recording.write(LAYERS, 100, {"inf_count": bad}, series={"skipped_step": skipped}, loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.step) == ("a", "grad", 60)


def test_an_output_is_though_the_scaler_skips_the_step(recording: Recording) -> None:
    skipped = np.zeros(100)
    skipped[60] = 1
    recording.write(
        LAYERS, 100, {"inf_count": bad_at(100, (1, 60))}, series={"skipped_step": skipped}, loss_scaled=True
    )
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.step) == ("b", "output", 60)


@pytest.mark.parametrize("steps", [0, 1, 700])
def test_a_healthy_run_has_none(recording: Recording, steps: int) -> None:
    recording.write(LAYERS, steps)
    assert recording.diagnose(RULE).findings == ()


def test_before_a_step_nothing_later_is_seen(recording: Recording) -> None:
    recording.write(LAYERS, 200, {"inf_count": bad_at(200, (1, 150))})
    assert recording.diagnose(RULE, stop=150).findings == ()
    assert len(recording.diagnose(RULE, stop=151).findings) == 1


def test_what_has_been_searched_is_searched_no_more_and_what_comes_later_is_found(recording: Recording) -> None:
    """The search goes on where it ended: after more skips, an overflow that nobody skipped, and a restart before it."""
    skips = np.arange(3_000) % 100 == 50
    bad = np.zeros((len(LAYERS), 3_000))
    bad[3, skips] = 1
    scaled = {"loss_scaled": True, "incarnation": "a"}
    recording.write(LAYERS, 3_000, {"inf_count": bad}, series={"skipped_step": skips}, **scaled)
    assert recording.diagnose(RULE).findings == ()
    recording.write(
        LAYERS, 200, {"inf_count": bad_at(200, (3, 150))}, series={"skipped_step": np.zeros(200)},
        first=3_000, loss_scaled=True, sequence=47,
    )  # fmt: skip
    (found,) = recording.diagnose(RULE).findings
    assert found.step == 3_150
    assert recording.diagnose(RULE, stop=3_150).findings == ()
    recording.write(
        LAYERS, 64, {"inf_count": bad_at(64, (3, 20))}, series={"skipped_step": np.zeros(64)},
        first=1_000, loss_scaled=True, incarnation="c",
    )  # fmt: skip
    (found,) = recording.diagnose(RULE).findings
    assert found.step == 1_020


def test_a_rank_that_lags_may_still_be_the_first(recording: Recording) -> None:
    """Nothing is taken for searched that some rank has not told yet."""
    recording.write(LAYERS, 30, rank=1, world_size=2, series={"skipped_step": 0.0}, loss_scaled=True)
    recording.write(
        LAYERS, 100, {"inf_count": bad_at(100, (3, 80))}, world_size=2, series={"skipped_step": np.arange(100) == 80},
        loss_scaled=True,
    )  # fmt: skip
    assert recording.diagnose(RULE).findings == ()
    recording.write(
        LAYERS, 64, {"inf_count": bad_at(64, (3, 10))}, rank=1, world_size=2, series={"skipped_step": np.zeros(64)},
        first=30, loss_scaled=True, sequence=1,
    )  # fmt: skip
    (found,) = recording.diagnose(RULE).findings
    assert (found.rank, found.step) == (1, 40)
