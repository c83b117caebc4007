"""What ranks send to check one another, bit by bit, and the faults that are planted there."""

from __future__ import annotations

import pytest
import torch

from rangewatch.checks.linkcheck import worker
from rangewatch.checks.linkcheck.faults import Fault, Planted

PATTERNS = (worker.bits_of, worker.whole_numbers, worker.exact_floats)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_the_same_everywhere_and_differs_between_ranks(pattern: type) -> None:
    assert worker.first_difference(pattern(3), pattern(3)) == ""
    assert worker.first_difference(pattern(3), pattern(4)) != ""


@pytest.mark.parametrize("pattern", PATTERNS[1:])
def test_a_sum_has_the_same_bits_in_any_order(pattern: type) -> None:
    terms = [pattern(rank) for rank in range(16)]
    forward, backward = terms[0].clone(), terms[-1].clone()
    for each in terms[1:]:
        forward += each
    for each in reversed(terms[:-1]):
        backward += each
    assert worker.first_difference(forward, backward) == ""
    assert worker.first_difference(forward, torch.stack(terms).sum(0)) == ""
    assert worker.first_difference(forward, worker.total(pattern, range(16))) == ""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_single_flipped_bit_is_found_and_named(pattern: type) -> None:
    values = pattern(1)
    Planted([Fault((1,), "wrong")], 1, (0, 1)).corrupt(values)
    found = worker.first_difference(values, pattern(1))
    assert found.startswith(f"element {worker.COUNT // 3} is 0x") and found.endswith("(1 of 65536 wrong)")


def test_bits_are_compared_and_not_values() -> None:
    zeros, negative = torch.zeros(4), torch.tensor([0.0, 0.0, -0.0, 0.0])
    assert worker.first_difference(negative, zeros) == "element 2 is 0x80000000 and not 0x00000000 (1 of 4 wrong)"
    nan = torch.full((4,), float("nan"))
    assert worker.first_difference(nan, nan.clone()) == ""


def test_a_fault_acts_on_its_highest_rank_and_only_where_all_its_ranks_are() -> None:
    link = Fault((2, 5), "hang")
    assert link.acts(5, (2, 5)) and link.acts(5, tuple(range(8)))
    assert not link.acts(2, (2, 5)) and not link.acts(5, (1, 5))
    assert not Fault((5,), "hang").acts(5, (5,))
