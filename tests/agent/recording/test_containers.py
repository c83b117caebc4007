"""What modules may return: the search for tensors ends soon, whatever it is."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from rangewatch.core import limits
from rangewatch.recording.tensor_names import leaves


def self_containing(count: int) -> list[Any]:
    values: list[Any] = []
    values.extend([values] * count)
    return values


def calls_of(value: Any) -> int:
    """Python calls made while `value` is searched."""
    count = 0

    def profile(*args: Any) -> None:
        nonlocal count
        count += args[1] == "call"

    sys.setprofile(profile)
    try:
        leaves(value)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "value",
    [self_containing(6), list(range(1_000_000)), {number: number for number in range(300_000)}, [[1] * 1000] * 1000],
    ids=["itself", "numbers", "mapping", "the same list"],
)
def test_the_search_is_bounded(value: Any) -> None:
    assert calls_of(value) <= 5 * limits.CONTAINER_VISITS


def test_tensors_behind_a_container_that_comes_again_are_found_once() -> None:
    first, second = torch.ones(1), torch.ones(2)
    shared = [first]
    assert [id(tensor) for tensor in leaves([shared, shared, {"a": second}])] == [id(first), id(second)]


def test_containers_made_on_the_way_are_not_taken_for_one_another() -> None:
    class Lazy(dict):  # type: ignore[type-arg]
        def values(self) -> Any:
            return ([torch.full((1,), float(number))] for number in range(10))

    assert [tensor.item() for tensor in leaves(Lazy())] == list(range(10))


def test_a_position_is_that_among_all_values() -> None:
    x, y = torch.ones(1), torch.ones(2)
    assert leaves((x, None, {"mask": 3, "more": [y]}, "fast")) == [x, None, 3, y, "fast"]
    assert len(leaves([x] * (2 * limits.FLATTEN_TENSORS))) == limits.FLATTEN_TENSORS
    assert leaves([*range(1000), x])[1000] is x
