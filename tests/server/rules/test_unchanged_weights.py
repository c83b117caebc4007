"""Weights that get gradients and do not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.rules.gradients.unchanged_weights import RULE
from tests.server.rules.conftest import Recording, tensor

LAYERS = [
    tensor("a.weight", "weight", 0, "float32"),
    tensor("b.weight", "weight", 1, "float32"),
    tensor("a.weight", "grad", 2, "float32"),
    tensor("b.weight", "grad", 3, "float32"),
]


def write(
    recording: Recording, squares: Any, steps: int = 350, every: int = 100, gradient: float = 1.0, **more: Any
) -> None:
    """The sum of squares of b is this at each reading; a's changes."""
    at = np.arange(steps)
    read = (at % every == 0).astype(float)
    calls = np.stack([read, read, np.ones(steps), np.full(steps, float(gradient > 0))])
    full = np.stack([read, read, 0 * read, 0 * read])
    sums = np.stack([1 + at * 1e-9, np.broadcast_to(squares, steps), 0 * at, 0 * at]) * full
    amax = np.stack([read, read, np.ones(steps), np.full(steps, gradient)])
    columns = {"call_count": calls, "numel": 32 * calls, "full_numel": 32 * full, "sum_sq": sums, "amax": amax}
    recording.write(LAYERS, steps, columns, **more)


@pytest.mark.parametrize("every", [100, 10])
def test_one_that_does_not_change_is_told(recording: Recording, every: int) -> None:
    write(recording, 0.3, every=every)
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.rank, found.facts["since_step"]) == ("b.weight", "weight", 0, 0)
    assert found.facts["tensors"] == 1


def test_the_learning_rate_is_told(recording: Recording) -> None:
    write(recording, 0.3, series={"lr": 0.0})
    (found,) = recording.diagnose(RULE).findings
    assert "The learning rate that was logged is 0." in found.evidence


def test_one_that_stops_changing(recording: Recording) -> None:
    at = np.arange(750)
    write(recording, np.minimum(0.3 + at * 1e-6, 0.3003), steps=750)
    (found,) = recording.diagnose(RULE).findings
    assert found.facts["since_step"] == 256  # the group of steps with the reading of step 300


def test_the_least_change_counts(recording: Recording) -> None:
    write(recording, 0.3 * (1 + 1e-13 * np.arange(350)))
    assert recording.diagnose(RULE).findings == ()


def test_a_frozen_one_has_no_gradient(recording: Recording) -> None:
    write(recording, 0.3, gradient=0.0)
    assert recording.diagnose(RULE).findings == ()


def test_two_readings_are_not_enough(recording: Recording) -> None:
    write(recording, 0.3, steps=190)
    assert recording.diagnose(RULE).findings == ()


def test_without_the_full_set_nothing_is_known(recording: Recording) -> None:
    recording.write(LAYERS, 350)
    assert recording.diagnose(RULE).findings == ()


def test_a_gradient_that_is_nothing_but_rounding_moves_nothing(recording: Recording) -> None:
    """An attention's key bias: 0 by its formula, some 1e-8 of the others' in float32."""
    write(recording, 0.3, gradient=1e-6)
    assert recording.diagnose(RULE).findings == ()


def test_a_small_gradient_is_one(recording: Recording) -> None:
    write(recording, 0.3, gradient=1e-4)
    assert len(recording.diagnose(RULE).findings) == 1
