"""Activations that give zeros alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.activations.dead_activation import RULE
from tests.server.rules.conftest import Recording, tensor


def layers(*classes: str) -> list[Any]:
    return [tensor(f"layers.{at}", call_index=at, module=each) for at, each in enumerate(classes)]


def test_a_relu_with_zeros_alone_is_told(recording: Recording) -> None:
    amax = np.ones((3, 100))
    amax[1:, 50:] = 0
    recording.write(layers("Linear", "ReLU", "ReLU6"), 100, {"amax": amax})
    assert recording.diagnose(RULE, stop=80).findings == ()
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.rank, found.step) == ("layers.1", 0, 50)
    assert found.facts == {"zero_share": 1.0, "since_step": 50, "latest_step": 50, "tensors": 2}
    assert found.summary == "Step 50, rank 0: the output of layers.1 (ReLU) is dead: it has nothing but zeros."


@pytest.mark.parametrize("alive", [0, 50])
def test_what_is_dead_from_the_start_is_no_doing_of_an_update(recording: Recording, alive: int) -> None:
    recording.write(layers("ReLU"), 100, {"amax": np.where(np.arange(100) < alive, 1.0, 0.0)})
    (found,) = recording.diagnose(RULE).findings
    assert ("Lower the learning rate" in found.remedy[0].text) == (alive > 0)
    assert ("begins with" in found.remedy[0].text) == (alive == 0)


@pytest.mark.parametrize("share", [0.9995, 0.97])
def test_nearly_all_zeros_by_the_full_set(recording: Recording, share: float) -> None:
    measured = (np.arange(350) % 100 == 0).astype(float)
    full = {"full_numel": 1e6 * measured, "zero_count": 1e6 * share * measured, "sum_sq": 1.0}
    recording.write(layers("ReLU"), 350, full)
    found = recording.diagnose(RULE).findings
    assert len(found) == (1 if share > 0.999 else 0)


@pytest.mark.parametrize(
    ("first", "shape", "count"),
    [(0.5, (8, 64), 1), (0.95, (8, 64), 0), (0.5, (8, 8), 0), (0.5, (8, 64, 3, 3), 1), (0.5, (8, 3, 64), 0)],
)
def test_a_layer_that_gives_most_rows_nothing(
    recording: Recording, first: float, shape: tuple[int, ...], count: int
) -> None:
    """0.13 units of 64 are left to a row; half of them were at first."""
    steps = np.arange(350)
    share = np.where(steps < 100, first, 0.998)
    measured = (steps % 100 == 0).astype(float)
    full = {"full_numel": 1e6 * measured, "zero_count": 1e6 * share * measured, "sum_sq": 1.0}
    recording.write([TensorEntry("act", "output", 0, "float32", shape, 0, "ReLU")], 350, full)
    assert len(recording.diagnose(RULE).findings) == count


@pytest.mark.parametrize("module", ["LeakyReLU", "PReLU", "GELU", "Dropout", "Linear", "MyGate"])
def test_zeros_from_the_first_step_are_meant_elsewhere(recording: Recording, module: str) -> None:
    recording.write(layers(module), 100, {"amax": 0.0})
    assert recording.diagnose(RULE).findings == ()


def test_a_linear_layer_that_has_died(recording: Recording) -> None:
    recording.write(layers("Linear"), 150, {"amax": np.where(np.arange(150) < 100, 1.0, 0.0)})
    (found,) = recording.diagnose(RULE).findings
    assert found.facts["since_step"] == 100


@pytest.mark.parametrize("module", ["Linear", "ReLU"])
def test_since_when_stays_however_long_ago_it_was(recording: Recording, module: str) -> None:
    recording.write(layers(module), 1_500, {"amax": np.where(np.arange(1_500) < 100, 1.0, 0.0)})
    for stop in (150, 320, 400, 1_500):
        (found,) = recording.diagnose(RULE, stop=stop).findings
        assert (found.step, found.facts["since_step"]) == (100, 100)


def test_what_was_hardly_ever_alive_long_ago_is_quiet(recording: Recording) -> None:
    recording.write(layers("Linear"), 900, {"amax": np.where(np.arange(900) % 40 == 5, np.arange(900) < 620, 0.0)})
    assert recording.diagnose(RULE).findings == ()


def test_zeros_now_and_then_are_quiet(recording: Recording) -> None:
    recording.write(layers("ReLU", "Linear"), 250, {"amax": (np.arange(250) % 30 == 0).astype(float)})
    for stop in range(10, 251, 20):
        assert recording.diagnose(RULE, stop=stop).findings == ()


def test_what_is_not_called_or_not_finite_is_not_dead(recording: Recording) -> None:
    calls = np.stack([np.where(np.arange(100) < 40, 1.0, 0.0), np.ones(100)])
    bad = np.stack([np.zeros(100), np.full(100, 32.0)])
    columns = {"amax": np.stack([calls[0], np.zeros(100)]), "call_count": calls, "nan_count": bad}
    recording.write(layers("ReLU", "ReLU"), 100, columns)
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize("steps", [0, 1, 20])
def test_short_runs(recording: Recording, steps: int) -> None:
    recording.write(layers("ReLU"), steps, {"amax": 0.0})
    diagnosis = recording.diagnose(RULE)
    assert (diagnosis.findings, diagnosis.failed) == ((), {})


def test_one_rank_that_lives_is_enough(recording: Recording) -> None:
    for rank in range(2):
        recording.write(layers("ReLU"), 100, {"amax": float(rank)}, rank=rank, world_size=2)
    assert recording.diagnose(RULE).findings == ()
