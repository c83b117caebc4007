"""Named sets of thresholds name rules and thresholds that there are."""

from __future__ import annotations

import pytest

from rangewatch_server.rules import BY_NAME, presets


@pytest.mark.parametrize("preset", presets.ALL, ids=lambda preset: preset.name)
def test_every_threshold_is_one_of_a_rule(preset: presets.Preset) -> None:
    for rule, values in preset.thresholds.items():
        assert set(values) <= {each.name for each in BY_NAME[rule].thresholds}
        assert BY_NAME[rule].limits(values) != BY_NAME[rule].limits()
