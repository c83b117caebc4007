"""A loss scale that grows for ever."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch_server.rules.loss_scale.growing_past_use import RULE
from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.loss_scales import GRAD_A, GRAD_B, GRAD_WEIGHT, LAYERS, bad, reported, scaled

ALWAYS = scaled(300, (), interval=20)
"""From 2^16 to 2^30."""


def test_a_scaler_where_nothing_is_float16(recording: Recording) -> None:
    wide = [tensor(each.fqn, each.kind, each.call_index, "bfloat16") for each in LAYERS]
    recording.write(wide, 60, series=scaled(60, (), interval=20), loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    assert (found.severity, found.step) == ("info", 19)
    assert "nothing recorded is float16 (bfloat16)" in found.summary
    assert "enabled=False" in found.remedy[0].code


def test_how_it_grows_where_that_is_known(recording: Recording) -> None:
    recording.write(LAYERS, 300, series=ALWAYS, loss_scaled=True, events=[reported(20)])
    (found,) = recording.diagnose(RULE).findings
    assert found.evidence[-1] == "It is multiplied by 2 after 20 clean steps, its growth_interval."


def test_gradients_that_are_zero(recording: Recording) -> None:
    amax = np.ones((len(LAYERS), 300))
    amax[[GRAD_A, GRAD_B, GRAD_WEIGHT]] = 0
    recording.write(LAYERS, 300, {"amax": amax}, series=ALWAYS, loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    assert (found.severity, found.step) == ("warning", 19)
    assert found.summary.endswith("to 1073741824; every recorded gradient is zero.")


def test_gradients_that_are_tiny(recording: Recording) -> None:
    recording.write(LAYERS, 300, series=ALWAYS, loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    assert found.severity == "info"
    assert any("is 1, 16.0 bits below its limit; without the scale it is 9.3e-10" in each for each in found.evidence)


def test_a_high_scale_that_gradients_need_is_healthy(recording: Recording) -> None:
    recording.write(LAYERS, 300, {"amax": 8_000.0}, series=ALWAYS, loss_scaled=True)
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize("most", [2.0**15, 2.0**20])
def test_one_that_meets_overflows_is_healthy(recording: Recording, most: float) -> None:
    series = scaled(300, lambda scale: scale > most, interval=20)
    recording.write(LAYERS, 300, {"inf_count": bad(series, GRAD_B)}, series=series, loss_scaled=True)
    assert recording.diagnose(RULE).findings == ()


def test_one_that_starts_high_has_not_grown(recording: Recording) -> None:
    recording.write(LAYERS, 300, series=scaled(300, (), first=2.0**32), loss_scaled=True)
    assert recording.diagnose(RULE).findings == ()


def test_nothing_recorded_says_nothing(recording: Recording) -> None:
    recording.write([], 300, series=ALWAYS, loss_scaled=True)
    report = recording.diagnose(RULE)
    assert (report.findings, report.failed) == ((), {})
