"""How much attention reads, beside how much of a batch is no padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.rules.setup.padding_mask import RULE
from tests.server.rules.conftest import Recording, tensor

STEPS = 64
SHARES = np.random.default_rng(2).uniform(0.4, 0.8, STEPS)


@pytest.mark.parametrize(
    ("tokens", "attended", "count"),
    [
        (SHARES, 1.05 * (1 - SHARES), 1),
        (SHARES, 0.9 * SHARES + 0.05, 0),
        (SHARES, 0.5, 0),
        (0.6, 1 - SHARES, 0),
        (SHARES, SHARES[::-1], 0),
        (np.where(np.arange(STEPS) % 8, np.nan, SHARES), 1 - SHARES, 0),
    ],
    ids=["turned around", "as it should be", "causal", "rows of one length", "of another thing", "too few"],
)
def test_padding(recording: Recording, tokens: Any, attended: Any, count: int) -> None:
    series = {"loss": 0.7, "token_share": tokens, "attention_share": attended}
    recording.write([tensor("a")], STEPS, series=series)
    found = recording.diagnose(RULE).findings
    assert [(each.step, each.severity, each.facts["cause_class"]) for each in found] == [(0, "warning", "mask")] * count
    assert all("src_key_padding_mask" in each.remedy[0].text for each in found)
