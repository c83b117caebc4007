"""How many of the simulated trainings are made and judged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Seeds = Callable[[int], range]


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow), pytest.param(1_000, marks=pytest.mark.soak)])
def seeds(request: pytest.FixtureRequest) -> Seeds:
    """`seeds(most)`: so many seeds at most. To make and judge a training takes 20 to 200 ms."""
    return lambda most: range(min(most, request.param))
