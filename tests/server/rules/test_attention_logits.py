"""Attention logits that grow."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch_server.rules.activations.attention_logits import RULE
from tests.server.rules.conftest import Recording, tensor

NOISE = np.random.default_rng(5)
GROWS = 2 ** (4 + 0.03 * np.arange(200) + NOISE.normal(0, 0.2, 200))
SOFTMAX = tensor("blocks.0.attn.softmax", "input", module="Softmax")


def test_growth_is_told(recording: Recording) -> None:
    recording.write([SOFTMAX], 200, {"amax": GROWS})
    assert recording.diagnose(RULE, stop=50).findings == ()
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.rank, found.step) == ("blocks.0.attn.softmax", "input", 0, 199)
    assert 500 < found.facts["amax"] < 2_000


def test_a_module_that_is_named_for_them(recording: Recording) -> None:
    recording.write([tensor("layer.3.self_attention.scores", module="Scores")], 200, {"amax": GROWS})
    assert len(recording.diagnose(RULE).findings) == 1


@pytest.mark.parametrize(
    "amax",
    [
        np.full(200, 1e4),  # a mask of -1e4
        1e4 + GROWS,
        GROWS / 100,  # small
        np.minimum(GROWS, 100),  # they stop
        2 ** (7 + NOISE.normal(0, 1, 200)),
        np.where(np.arange(200) < 100, 16, 256),
        np.r_[GROWS[:150], 100 * GROWS[:50] / GROWS[0]],
    ],
    ids=["mask", "mask and logits", "small", "stops", "noise", "one step", "falls again"],
)
def test_others_are_quiet(recording: Recording, amax: np.ndarray) -> None:
    recording.write([SOFTMAX], 200, {"amax": amax})
    assert recording.diagnose(RULE).findings == ()


def test_other_modules_are_quiet(recording: Recording) -> None:
    others = [tensor("head.softmax", "input", module="Softmax"), tensor("attn.out", module="Linear", call_index=1)]
    recording.write(others, 200, {"amax": GROWS})
    assert recording.diagnose(RULE).findings == ()
