"""Who stands out of a thousand ranks, and that equal ones never do."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch_server.numerics.outliers import OUTLYING, outlying, robust_scores


@pytest.mark.parametrize("count", [3, 8, 1_024])
def test_equal_ranks_yield_no_outlier(count: int) -> None:
    scores = robust_scores(np.full(count, 0.2), floor=1e-3)
    assert (scores == 0).all() and not len(outlying(scores, 8))


def test_less_than_the_floor_is_no_difference() -> None:
    values = np.full(64, 0.2)
    values[5] += 5.9e-3
    assert not len(outlying(robust_scores(values, floor=1e-3), 8))
    values[5] += 0.2e-3
    assert outlying(robust_scores(values, floor=1e-3), 8).tolist() == [5]


def test_jitter_alone_yields_none_and_a_far_value_among_it_does() -> None:
    values = np.random.default_rng(0).normal(1.0, 0.05, 1_024)
    assert not len(outlying(robust_scores(values, floor=1e-6), 8))
    values[69] = 1.5
    assert outlying(robust_scores(values, floor=1e-6), 8).tolist() == [69]
    assert not len(outlying(robust_scores(values, floor=1e-6, worst="least"), 8)), "it is on the good side"


def test_many_bad_ones_do_not_hide_themselves() -> None:
    values = np.zeros(100)
    values[:30] = np.arange(30) + 1.0
    scores = robust_scores(values, floor=0.1)
    assert outlying(scores, 4).tolist() == [29, 28, 27, 26], "the farthest first, at most so many"
    assert np.count_nonzero(scores >= OUTLYING) == 30


def test_what_is_unknown_is_no_outlier_and_hides_none() -> None:
    values = np.array([np.nan, 58.0, 58.0, np.nan, 58.0, 90.0])
    scores = robust_scores(values, floor=2.0)
    assert np.isnan(scores[[0, 3]]).all() and outlying(scores, 8).tolist() == [5]
    assert np.isnan(robust_scores(np.array([1.0, 9.0, np.nan]), floor=1.0)).all(), "of two none is the odd one"
