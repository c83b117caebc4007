"""Microbatches that become more, and are not divided by how many they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import Optimizers, event
from rangewatch_server.rules.setup import summed_microbatches
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("head"), *(tensor(f"{at}.weight", "grad", 1 + at, "float32") for at in range(5))]
STEPS, AT = 120, 60


def at_step(before: float, after: float, steps: int = STEPS, at: int = AT) -> Any:
    return np.where(np.arange(steps) < at, before, after)


def ramp(
    recording: Recording, calls: Any = None, factor: Any = 8.0, loss: Any = 2.0, classes: Any = ("SGD",), **more: Any
) -> None:
    counts = at_step(1, 8) if calls is None else calls
    steps, noise = len(counts), 1 + 0.3 * np.modf(np.arange(len(counts)) * 0.618)[0]
    amax = np.where(counts > counts[0], np.reshape(factor, (-1, 1)), 1.0) * noise
    series = {"loss": loss, "lr": 0.04} | more.pop("series", {})
    events = [event(Optimizers(classes), 1, 2)]
    recording.write(LAYERS, steps, {"call_count": counts, "amax": amax}, series=series, events=events, **more)


@pytest.mark.parametrize(
    ("factor", "loss"), [(8.0, 2.0), (3.0, 2.0), (5.0, at_step(2.0, 16.0)), ([1.0, 5.0, 5.0, 5.0, 5.0, 0.9], 2.0)],
    ids=["all of it", "as noise does", "the loss is summed as well", "all but one"],
)  # fmt: skip
def test_gradients_rise_with_their_number(recording: Recording, factor: Any, loss: Any) -> None:
    ramp(recording, factor=factor, loss=loss)
    (finding,) = recording.diagnose(summed_microbatches.RULE).findings
    assert (finding.step, finding.severity, finding.facts["cause_class"]) == (AT, "warning", "learning_rate")
    assert "8 backwards in place of 1" in finding.summary
    (earlier,) = recording.diagnose(summed_microbatches.RULE, stop=AT + 10).findings
    assert earlier == finding
    assert recording.diagnose(summed_microbatches.RULE, stop=AT + 4).findings == ()


def test_long_ago_in_a_long_run(recording: Recording) -> None:
    ramp(recording, at_step(2, 8, 3_000, 700), 3.9)
    (finding,) = recording.diagnose(summed_microbatches.RULE).findings
    assert (finding.step, finding.facts["before"], finding.facts["after"]) == (700, 2, 8)


def test_the_loss_scale_is_taken_out(recording: Recording) -> None:
    scale = at_step(64.0, 8.0)
    ramp(recording, factor=1.0, series={"loss_scale": scale}, loss_scaled=True)
    assert len(recording.diagnose(summed_microbatches.RULE).findings) == 1


@pytest.mark.parametrize(
    ("calls", "factor", "more"),
    [
        (None, 1.0, {}),
        (None, 0.36, {}),
        (None, 40.0, {}),
        (None, [1, 8, 8, 8, 1, 1], {}),
        (at_step(8, 8), 8.0, {}),
        (None, 8.0, {"loss": at_step(2.0, 40.0)}),
        (None, 8.0, {"series": {"lr": at_step(0.04, 0.005)}}),
        (1 + 7 * (np.arange(STEPS) % 4 == 3), 8.0, {}),
        (np.where((np.arange(STEPS) >= AT) & (np.arange(STEPS) < AT + 4), 8, 1), 8.0, {}),
    ],
    ids=["divided", "divided, less noise", "exploded", "some of them", "as many as before", "the loss jumped",
         "a rate that was lowered for it", "by turns", "for some steps"],
)  # fmt: skip
def test_it_is_none(recording: Recording, calls: Any, factor: Any, more: dict[str, Any]) -> None:
    ramp(recording, calls, factor, **more)
    assert recording.diagnose(summed_microbatches.RULE).findings == ()


@pytest.mark.parametrize(
    ("calls", "classes", "series"),
    [(None, ("AdamW",), {}), (at_step(1, 2), ("SGD",), {}), (None, ("SGD",), {"clipped_norm": 1.0}), (None, (), {})],
    ids=["Adam", "a second loss, may be", "clipped", "optimizer unknown"],
)  # fmt: skip
def test_it_is_only_worth_knowing(recording: Recording, calls: Any, classes: Any, series: Any) -> None:
    ramp(recording, calls, 1.9 if calls is not None else 6.0, classes=classes, series=series)
    (finding,) = recording.diagnose(summed_microbatches.RULE).findings
    assert finding.severity == "info"
