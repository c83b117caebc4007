"""A gradient that was rounding, and is none any more, does not explode."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch_server.rules.gradients.exploding_gradient import RULE
from tests.server.rules.conftest import Recording, tensor

WEIGHTS = [tensor(f"{at}.weight", "grad", at, "float32") for at in range(5)]


@pytest.mark.parametrize(
    ("usual", "now", "rules"), [(3e-8, 0.08, []), (3e-8, 1e4, [RULE.name]), (0.01, 5.0, [RULE.name])]
)  # fmt: skip
def test_what_it_had_been(recording: Recording, usual: float, now: float, rules: list[str]) -> None:
    amax = 0.1 * 2.0 ** np.random.default_rng(1).normal(0, 0.1, (5, 120))
    amax[0] *= np.where(np.arange(120) < 60, usual, now) / 0.1
    recording.write(WEIGHTS, 120, {"amax": amax})
    assert [each.rule for each in recording.diagnose(RULE).findings] == rules
