"""Batches of one class each, and of another one later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import LossFunction
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
        (np.ones(STEPS), NOISE.integers(0, 6, STEPS)),  # a sampler that makes batches of one class
        (np.ones(STEPS), NOISE.permuted(np.tile(np.arange(4), (STEPS, 1)), axis=1)[:, 0]),  # microbatches of one class
    ],
    ids=["mixed", "rare", "two classes", "one class", "not for long", "drawn", "microbatches"],
)
def test_others(recording: Recording, share: Any, classes: Any) -> None:
    assert found(recording, share, classes) == ()


@pytest.mark.parametrize(
    ("classes", "kinds", "loss", "count"),
    [
        (AT // 20, 8, np.where(AT < 20, 0.01, 5.0), 1),
        (AT // 20, 2, np.where(AT < 20, 0.01, 5.0), 0),  # one of two is seldom, or is what was made
        (AT // 20, 8, 1.0, 0),  # nothing jumps with it
        (AT // 8, 8, np.where(AT < 8, 0.01, 5.0), 0),  # may be drawn
    ],
    ids=["a jump with the second class", "of two classes", "no jump", "one reading"],
)
def test_the_first_change_of_class_with_a_jump(
    recording: Recording, classes: Any, kinds: int, loss: Any, count: int
) -> None:
    read = np.where(AT % 8 == 0, 1.0, np.nan)
    said = [events.event(LossFunction("nll", kinds), 1, 0)]
    series = {"loss": loss * np.ones(STEPS), "target_share": read, "target_class": classes * read}
    recording.write(MODEL, STEPS, series=series, events=said)
    findings = recording.diagnose(sorted_classes.RULE, stop=25).findings
    assert [(each.step, each.severity) for each in findings] == [(0, "warning")] * count


def test_drawn_classes_are_hardly_ever_ordered() -> None:
    noise = np.random.default_rng(1)
    for classes in (3, 4, 10, 1_000):
        drawn = [noise.integers(0, classes, length) for length in (8, 12, 20, 60) for _ in range(500)]
        assert np.mean([sorted_classes._is_ordered(each.astype(np.float64)) for each in drawn]) < 2e-3


@pytest.mark.parametrize("stretch", [2, 8, 40, 200])
def test_sorted_ones_are(stretch: int) -> None:
    at = np.arange(0, 2_000, 8)
    order = np.random.default_rng(2).permutation(10)
    assert sorted_classes._is_ordered((at // stretch % 10).astype(np.float64)) or stretch == 2
    assert sorted_classes._is_ordered(order[at // stretch % 10].astype(np.float64)) or stretch < 40


def test_the_same_order_again_and_again() -> None:
    """Four batches of each of eight classes: of them each eighth step shows every second."""
    assert sorted_classes._is_ordered(np.tile([0.0, 2.0, 4.0, 6.0], 3))
    assert sorted_classes._is_ordered(np.tile([4.0, 0.0, 6.0, 2.0], 3))
    assert not sorted_classes._is_ordered(np.array([4.0, 0.0, 6.0, 2.0, 4.0, 6.0, 0.0, 2.0, 6.0, 2.0, 4.0, 0.0]))


def test_ranks_with_other_classes_are_mixed_together(recording: Recording) -> None:
    read = np.where(AT % 8 == 0, 1.0, np.nan)
    for rank in range(4):
        series = {"loss": 1.0, "target_share": read, "target_class": (AT // 40 + rank) % 10 * read}
        recording.write(MODEL, STEPS, rank=rank, series=series)
    assert recording.diagnose(sorted_classes.RULE).findings == ()


def test_of_several_ranks(recording: Recording) -> None:
    read = np.where(AT % 8 == 0, 1.0, np.nan)
    for rank in range(4):
        series = {"loss": 1.0, "target_share": read, "target_class": (AT + rank) // 40 % 10 * read}
        recording.write(MODEL, STEPS, rank=rank, series=series)
    (finding,) = recording.diagnose(sorted_classes.RULE).findings
    assert finding.facts["classes"] >= 7
