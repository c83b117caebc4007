"""Updates too large or too small for their weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.rules.gradients.update_ratio import RULE
from rangewatch_server.rules.presets import BY_NAME as PRESETS
from tests.server.rules.conftest import Recording, tensor

LAYERS = [
    tensor("a.weight", "weight", 0, "float32"),
    tensor("b.weight", "weight", 1, "float32"),
    tensor("a.weight", "update", 2, "float32"),
    tensor("b.weight", "update", 3, "float32"),
]


def write(recording: Recording, ratio: Any, steps: int = 350, every: int = 100, *, full: bool = True) -> None:
    """Weights of size 1, read every so many steps; `ratio` of b's update; a's is 0.001."""
    read = (np.arange(steps) % every == 0).astype(float)
    sizes = np.stack([read, read, 0.001 * read, read * np.broadcast_to(ratio, steps)])
    columns = {"call_count": read, "numel": 32 * read, "amax": sizes}
    recording.write(LAYERS, steps, columns | ({"full_numel": 32 * read, "sum_sq": 32 * sizes**2} if full else {}))


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("ratio", "word"), [(2.0, "large"), (1e-10, "small")])
def test_out_of_bounds_is_told(recording: Recording, ratio: float, word: str, full: bool) -> None:
    write(recording, ratio, full=full)
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.rank, found.subject) == ("b.weight", "update", 0, word)
    assert found.facts["ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (2.0, "too large: each is 2 times the weight's own size."),
        (0.5, "too large: each is 50 % of the weight's own size."),
        (1e-10, "too small: each is 1e-08 % of the weight's own size."),
    ],
)
def test_the_ratio_is_said_in_words(recording: Recording, ratio: float, words: str) -> None:
    write(recording, ratio)
    (found,) = recording.diagnose(RULE).findings
    assert found.summary.endswith(words)
    assert "the limit is" in found.evidence[0]
    assert "about 0.1 % is usual" in found.evidence[0]


def test_two_readings_are_not_enough(recording: Recording) -> None:
    write(recording, 2.0, steps=190)
    assert recording.diagnose(RULE).findings == ()


def test_one_that_goes_back_in_bounds_is_quiet(recording: Recording) -> None:
    write(recording, np.where(np.arange(550) < 400, 2.0, 0.01), steps=550)
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize("ratio", [0.05, 1e-6, 0.0])
def test_usual_ones_and_zero_are_quiet(recording: Recording, ratio: float) -> None:
    write(recording, ratio)
    assert recording.diagnose(RULE).findings == ()


def test_weights_that_begin_at_zero_and_biases(recording: Recording) -> None:
    layers = [tensor("b", "weight", 0), type(LAYERS[0])("b", "update", 0, "float32", (8,), 1, "")]
    recording.write(layers, 350, {"amax": np.array([[0.0], [1.0]])})
    assert recording.diagnose(RULE).findings == ()


def test_without_updates(recording: Recording) -> None:
    recording.write([tensor("a")], 350)
    assert recording.diagnose(RULE).findings == ()


def test_the_preset_is_wider(recording: Recording) -> None:
    write(recording, 2.0)
    assert recording.diagnose(RULE, thresholds=PRESETS["sagemaker"].thresholds).findings == ()
