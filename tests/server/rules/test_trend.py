"""A line through noisy points, and when it reaches a limit."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch_server.rules.trend import FEWEST, crossing, fit


def test_an_exact_line() -> None:
    steps = np.arange(10, 30)
    found = fit(steps, 0.5 * steps - 3)
    assert found is not None
    assert found.slope == found.low == found.high == pytest.approx(0.5)
    assert found.level == pytest.approx(0.5 * 29 - 3)
    assert found.scatter == pytest.approx(0)
    assert (found.first, found.last, found.count) == (10, 29, 20)
    assert found.growth == pytest.approx(9.5)


def test_too_few_points() -> None:
    assert fit(np.arange(FEWEST - 1), np.zeros(FEWEST - 1)) is None


def test_gaps_between_steps_count() -> None:
    steps = np.array([0, 1, 2, 50, 51, 100])
    found = fit(steps, 2.0 * steps)
    assert found is not None
    assert found.slope == pytest.approx(2.0)


def test_the_interval_has_the_slope_and_spikes_do_not_move_it() -> None:
    for seed in range(20):
        noise = np.random.default_rng(seed)
        steps = np.arange(60)
        values = 0.1 * steps + noise.normal(0, 0.5, 60)
        values[::7] += 20
        found = fit(steps, values)
        assert found is not None, seed
        assert found.low < 0.1 < found.high, seed
        assert abs(found.slope - 0.1) < 0.05, seed


def test_noise_without_slope_is_none_in_nearly_all_cases() -> None:
    noise = np.random.default_rng(0)
    found = [fit(np.arange(64), noise.normal(0, 1, 64)) for _ in range(300)]
    sure = sum(each is not None and (each.low > 0 or each.high < 0) for each in found)
    assert sure <= 9  # 1 % are expected


def test_noise_that_wanders_is_trusted_less() -> None:
    noise = np.random.default_rng(0)
    wander = np.convolve(noise.normal(0, 1, 71), np.ones(8) / 8, "valid")
    found, same = fit(np.arange(64), wander), fit(np.arange(64), noise.permutation(wander))
    assert found is not None
    assert same is not None
    assert found.high - found.low > 1.5 * (same.high - same.low)


def test_few_points_are_sure_of_nothing_below_six() -> None:
    found = fit(np.arange(5), np.arange(5.0))
    assert found is not None
    assert found.low == -np.inf
    six = fit(np.arange(6), np.arange(6.0))
    assert six is not None
    assert six.low > 0


def test_the_crossing() -> None:
    found = fit(np.arange(11), np.arange(11.0))
    assert found is not None
    when = crossing(found, 16.0)
    assert when.about == when.earliest == when.latest == pytest.approx(6.0)
    noisy = crossing(found, 16.0, margin=2.0)
    assert noisy.about == noisy.earliest == pytest.approx(4.0)
    assert noisy.latest == pytest.approx(6.0)
    assert crossing(found, 5.0).about == 0.0


def test_what_does_not_rise_never_crosses() -> None:
    found = fit(np.arange(11), -np.arange(11.0))
    assert found is not None
    assert crossing(found, 16.0).about == np.inf
