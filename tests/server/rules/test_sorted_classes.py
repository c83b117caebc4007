"""Batches of one class each, and of another one later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.rules.setup import sorted_classes
from tests.server.rules.conftest import Recording, tensor

STEPS = 300
MODEL = [tensor("head.weight", "grad", 0, "float32")]
NOISE = np.random.default_rng(4)


def found(recording: Recording, share: Any, classes: Any, stop: int | None = None) -> Any:
    at = np.arange(STEPS)
    read = np.where(at % 8 == 0, 1.0, np.nan)
    recording.write(MODEL, STEPS, series={"loss": 1.0, "target_share": share * read, "target_class": classes * read})
    return recording.diagnose(sorted_classes.RULE, stop=stop).findings


AT = np.arange(STEPS)
MIXED = 0.1 + 0.2 * NOISE.random(STEPS)


def test_from_a_step_on(recording: Recording) -> None:
    (finding,) = found(recording, np.where(AT < 128, MIXED, 1.0), AT // 10 % 8)
    assert (finding.step, finding.severity, finding.facts["cause_class"]) == (128, "warning", "data")
    assert "Before, 2" in finding.evidence[1] or "Before, 1" in finding.evidence[1]
    assert "shuffle=True" in finding.remedy[0].code


def test_since_the_first_step_and_no_longer(recording: Recording) -> None:
    (finding,) = found(recording, np.where(AT < 128, 1.0, MIXED), AT // 10 % 8)
    assert (finding.step, finding.severity) == (0, "info")
    assert "at the first reading already" in finding.evidence[1] and "to step 120" in finding.summary


@pytest.mark.parametrize(
    ("share", "classes"),
    [
        (MIXED, AT // 10 % 8),
        (np.where(AT % 40 < 32, 1.0, 0.9), AT % 7),  # a seldom class, now and then
        (np.ones(STEPS), AT % 16 // 8),  # real ones and made ones
        (np.ones(STEPS), np.zeros(STEPS)),
        (np.where(AT < 248, MIXED, 1.0), AT // 8 % 7),  # seven readings: not long enough
    ],
    ids=["mixed", "rare", "two classes", "one class", "not for long"],
)
def test_others(recording: Recording, share: Any, classes: Any) -> None:
    assert found(recording, share, classes) == ()
