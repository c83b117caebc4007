"""More and more subnormal values, by a full set that is taken now and then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.rules.gradients.underflow_rising import RULE
from tests.server.rules.conftest import Recording, tensor

STEPS = 1_000
MEASURED = (np.arange(STEPS) % 100 == 0).astype(float)
RISES = np.maximum(0.0, (np.arange(STEPS) - 500) / 1_000)  # 0 up to step 500, then 40 % at step 900
FALLS = 2.0 ** -(10 + np.arange(STEPS) / 200)  # of the root mean square


def write(
    recording: Recording,
    share: Any,
    rms: Any = FALLS,
    kind: str = "grad_output",
    dtype: str = "float16",
    loss: Any = 1.0,
) -> None:
    full = {
        "full_numel": 1_000 * MEASURED, "zero_count": 500 * MEASURED, "subnormal_count": 500 * share * MEASURED,
        "sum_sq": 1_000 * np.square(rms) * MEASURED, "amax": 2.0**-8,
    }  # fmt: skip
    recording.write([tensor("layer", kind, dtype=dtype)], STEPS, full, loss_scaled=True, series={"loss": loss})


@pytest.mark.parametrize("kind", ["grad_output", "grad", "output"])
def test_a_rising_share_is_told(recording: Recording, kind: str) -> None:
    write(recording, RISES, kind=kind)
    assert recording.diagnose(RULE, stop=650).findings == ()
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.rank) == ("layer", kind, 0)
    assert found.facts["subnormal_fraction"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("share", "rms"),
    [
        (0.4 * np.ones(STEPS), FALLS),  # high, but always so
        (RISES, np.full(STEPS, 1.0)),  # a tail that weighs nothing
        (RISES, FALLS[::-1]),
        (0.4 * (np.arange(STEPS) % 200 < 100), FALLS),
        (RISES / 10, FALLS),
        (np.where(np.arange(STEPS) < 400, 0.0, 0.4), FALLS),  # one step, and then it stays
    ],
    ids=["constant", "tail", "grows", "to and fro", "few", "one step"],
)
def test_others_are_quiet(recording: Recording, share: np.ndarray, rms: np.ndarray) -> None:
    write(recording, share, rms)
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e5m2"])
def test_other_dtypes_are_quiet(recording: Recording, dtype: str) -> None:
    write(recording, RISES, dtype=dtype)
    assert recording.diagnose(RULE).findings == ()


def test_a_training_that_has_converged_has_nothing_left_to_lose(recording: Recording) -> None:
    write(recording, RISES, loss=2.0 ** -(np.arange(STEPS) / 60))
    assert recording.diagnose(RULE).findings == ()


def test_not_measured(recording: Recording) -> None:
    recording.write([tensor("layer", "grad")], 300)
    assert recording.diagnose(RULE).findings == ()
