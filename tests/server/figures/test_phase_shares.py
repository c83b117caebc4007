"""Which phase dominates, and which ranks wait for their data loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rangewatch_server.figures.phases import LAST_STEPS, LEAST_STEPS, PHASES, phase_shares


def rank_of(steps: int = 100, **seconds: Any) -> np.ndarray:
    """(phases, steps): those given, the others unknown."""
    return np.array([np.broadcast_to(np.asarray(seconds.get(phase, np.nan), float), steps) for phase in PHASES])


def test_the_longest_dominates_and_shares_are_of_the_step() -> None:
    found = phase_shares([0], rank_of(forward=0.2, backward=0.5, optimizer=0.2, other=0.1)[None])
    assert found.dominant == found.ranks[0].dominant == "backward"
    shares = found.ranks[0].shares
    assert shares["backward"] == pytest.approx(0.5) and shares["data_wait"] is None, "unknown, not 0"
    assert not found.is_loader_bound


def test_only_the_ranks_that_wait_for_data_are_named() -> None:
    slow = rank_of(data_wait=0.5, forward=0.2, backward=0.2, other=0.1)
    usual = rank_of(data_wait=0.01, forward=0.2, backward=0.69, other=0.1)
    found = phase_shares([3, 4, 7], np.stack([usual, slow, usual]))
    assert found.is_loader_bound and found.loader_bound_ranks == (4,)
    assert found.dominant == "backward", "of the mean rank"
    assert [each.dominant for each in found.ranks] == ["backward", "data_wait", "backward"]


def test_the_threshold_is_the_callers() -> None:
    seconds = rank_of(data_wait=0.2, other=0.8)[None]
    assert not phase_shares([0], seconds).is_loader_bound
    assert phase_shares([0], seconds, loader_bound_share=0.1).is_loader_bound


def test_stalls_of_less_than_half_the_steps_are_no_verdict() -> None:
    wait = np.full(100, 0.01)
    wait[::5] = wait[1::5] = 100.0
    assert not phase_shares([0], rank_of(data_wait=wait, forward=1.0, other=0.1)[None]).is_loader_bound


def test_only_the_last_steps_count() -> None:
    wait = np.where(np.arange(100) < 50, 0.0, 10.0)
    seconds = rank_of(data_wait=wait, forward=1.0, other=0.1)[None]
    assert phase_shares([0], seconds, last=20).is_loader_bound
    assert not phase_shares([0], seconds[:, :, :50]).is_loader_bound


def test_steps_that_were_not_told_take_no_place_among_the_last() -> None:
    seconds = rank_of(data_wait=1.0, other=1.0)
    seconds[:, 60:] = np.nan
    found = phase_shares([0], seconds[None])
    assert found.ranks[0].steps == LAST_STEPS and found.is_loader_bound


@pytest.mark.parametrize("steps", [0, 1, LEAST_STEPS - 1])
def test_of_few_steps_nothing_is_said(steps: int) -> None:
    found = phase_shares([0], rank_of(steps, data_wait=1.0, other=0.0)[None])
    assert found.dominant is None and not found.is_loader_bound
    assert set(found.ranks[0].shares.values()) == {None} and found.ranks[0].steps == steps


def test_no_rank_at_all() -> None:
    found = phase_shares([], np.zeros((0, len(PHASES), 10)))
    assert found.dominant is None and found.ranks == () and not found.is_loader_bound


@pytest.mark.parametrize("shape", [(1, len(PHASES)), (2, len(PHASES), 3), (1, 2, 3)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="seconds"):
        phase_shares([0], np.zeros(shape))


@given(st.lists(st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=6), min_size=LEAST_STEPS, max_size=40))
def test_shares_never_pass_the_step(rows: list[list[float]]) -> None:
    found = phase_shares([0], np.array(rows).T[None]).ranks[0]
    shares = [share for share in found.shares.values() if share is not None]
    assert len(shares) == len(PHASES) and all(0 <= share <= 1 for share in shares)
