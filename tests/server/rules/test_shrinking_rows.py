"""Embeddings whose rows shrink in proportion to themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.rules.updates.update_ratio import RULE
from tests.server.rules.conftest import Recording, tensor

STEPS, AT = 200, 80
SINCE = np.maximum(np.arange(STEPS) - AT, 0)
MODEL = [tensor("table", module="Embedding"), tensor("head", call_index=1, module="Linear")]


def found(recording: Recording, table: Any, loss: Any = 1.0) -> Any:
    noise = np.exp(np.random.default_rng(0).normal(0, 0.005, STEPS))
    recording.write(
        MODEL, STEPS, {"amax": np.stack([table * noise, np.ones(STEPS)])}, series={"loss": loss, "lr": 1e-3}
    )
    return recording.diagnose(RULE).findings


@pytest.mark.parametrize("part", [0.05, 0.3])
def test_rows_that_lose_a_part_of_themselves(recording: Recording, part: float) -> None:
    (finding,) = found(recording, np.maximum(2.0 * (1 - part) ** SINCE, 1e-3))
    assert (finding.step, finding.tensor, finding.severity) == (AT + 1, "table", "warning")
    assert finding.facts["cause_class"] == "regularization" and f"by {part:.0%} a step" in finding.summary
    assert "weight decay by the learning rate" in finding.remedy[0].text


def test_a_training_that_learns_all_the_same(recording: Recording) -> None:
    (finding,) = found(recording, np.maximum(2.0 * 0.7**SINCE, 1e-3), np.linspace(2.0, 0.5, STEPS))
    assert finding.severity == "info"


@pytest.mark.parametrize(
    "table",
    [
        2.0 * np.ones(STEPS),
        np.where(SINCE > 0, 0.01, 2.0),  # other weights
        2.0 * 0.995**SINCE,
        np.where(SINCE < 30, 2.0 * 0.85**SINCE, 2.0),  # it comes back
        np.where(np.arange(STEPS) % 3 == 0, 0.1, 2.0),  # rows that differ
        np.where(SINCE > 20, 0.0, 2.0 * 0.7**SINCE),
    ],
)
def test_tables_that_do_not_shrink_away(recording: Recording, table: Any) -> None:
    assert found(recording, table) == ()
