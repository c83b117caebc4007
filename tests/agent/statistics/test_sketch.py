"""Sketches of shards add up to that of the whole, whatever the cut; and they say how far two tensors are apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from rangewatch.recording.parallel.sketch_reads import is_first_copy, part_of, places_of
from rangewatch.statistics import sketch, sketches
from rangewatch.statistics.sketches import LEAST_999, PROJECTIONS, RANGE_95

HALF = 1 << 32


def of_whole(tensor: Tensor, step: int = 0, reading: int = 0) -> Tensor:
    return sketch.measure(tensor, [None] * tensor.dim(), tensor.shape, step, reading)


def hash_of(sums: Tensor) -> int:
    return (int(sums[1]) * HALF + int(sums[2])) % 2**64


def projections(sums: Tensor) -> Tensor:
    return sums[4 : 4 + PROJECTIONS] - sums[4 + PROJECTIONS :]


def cut(whole: Tensor, placements: Sequence[Any], sizes: Sequence[int], coordinate: Sequence[int]) -> Tensor:
    """As DTensor itself cuts it."""
    for placement, size, at in zip(placements, sizes, coordinate, strict=True):
        if not placement.is_replicate():
            whole = placement._split_tensor(whole, size, with_padding=False, contiguous=False)[0][at]
    return whole


def of_parts(whole: Tensor, placements: Sequence[Any], sizes: Sequence[int]) -> Tensor:
    total = torch.zeros(len(sketches.SUMS), dtype=torch.float64)
    for coordinate in itertools.product(*map(range, sizes)):
        local = cut(whole, placements, sizes, coordinate)
        places = part_of(whole.shape, local, placements, sizes, coordinate)
        assert places is not None
        if local.numel() and is_first_copy(placements, coordinate):
            total += sketch.measure(local, places, whole.shape, 3, 1)
    return total


def assert_adds_up(whole: Tensor, placements: Sequence[Any], sizes: Sequence[int]) -> None:
    parts, expected = of_parts(whole, placements, sizes), of_whole(whole, 3, 1)
    assert parts[0] == expected[0] == whole.numel() and hash_of(parts) == hash_of(expected)
    scale = float(whole.double().abs().sum()) or 1.0
    assert float((projections(parts) - projections(expected)).abs().max()) <= 1e-12 * scale
    assert float(parts[3]) == pytest.approx(float(expected[3]), rel=1e-12)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Any], list[int]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    sizes = [draw(st.integers(1, 8))] if len(sizes) == 1 else sizes
    kinds = st.one_of(st.just(Replicate()), st.integers(0, len(shape) - 1).map(Shard))
    return shape, [draw(kinds) for _ in sizes], sizes


@settings(max_examples=60, deadline=None)
@given(layouts(), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]), st.integers(3, 1000))
def test_shards_of_any_cut_add_up_to_the_whole(
    layout: tuple[tuple[int, ...], list[Any], list[int]], dtype: torch.dtype, piece: int
) -> None:
    shape, placements, sizes = layout
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape))).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketch, "HOST_ELEMENTS", piece)
        assert_adds_up(whole, placements, sizes)


def test_fsdp_over_tensor_parallelism() -> None:
    """The first dimension of the mesh deals out what the second has cut."""
    assert_adds_up(torch.randn(16, 5), [_StridedShard(0, split_factor=2), Shard(0)], [4, 2])
    assert_adds_up(torch.randn(16, 6), [_StridedShard(0, split_factor=2), Shard(1)], [4, 3])
    uneven = torch.randn(9, 5)
    local = cut(uneven, [_StridedShard(0, split_factor=2), Shard(0)], [2, 2], [0, 0])
    assert part_of((9, 5), local, [_StridedShard(0, split_factor=2), Shard(0)], [2, 2], [0, 0]) is None


def test_where_nobody_says_in_which_order_a_dimension_was_cut_it_has_no_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FSDP2 of torch 2.4 over tensor parallelism: one `Shard` and another, as of what is cut from left to right."""
    local, cuts = torch.ones(2, 4), [Shard(0), Shard(0)]
    assert part_of((8, 4), local, cuts, [2, 2], [0, 1]) == [pytest.approx([2, 3]), None]
    monkeypatch.setattr("rangewatch.recording.parallel.sketch_reads.SAYS_ORDER", False)
    assert part_of((8, 4), local, cuts, [2, 2], [0, 1]) is None
    assert part_of((8, 4), torch.ones(4, 2), [Shard(0), Shard(1)], [2, 2], [0, 1]) is not None


@pytest.mark.parametrize(("order", "places"), [((0, 1), [2, 3]), ((1, 0), None)])
def test_a_dimension_that_is_cut_from_right_to_left_has_no_places(
    order: tuple[int, int], places: list[int] | None
) -> None:
    mesh = SimpleNamespace(shape=(2, 2), get_coordinate=lambda: [0, 1])
    spec = SimpleNamespace(shard_order=(SimpleNamespace(tensor_dim=0, mesh_dims=order),))
    tensor = SimpleNamespace(shape=(8,), placements=(Shard(0), Shard(0)), device_mesh=mesh, _spec=spec)
    found = places_of(tensor, torch.ones(2))
    assert found == (None if places is None else [pytest.approx(places)])


def test_a_part_that_is_not_as_it_should_be_has_no_places() -> None:
    assert part_of((10, 4), torch.ones(5, 4), [Shard(0)], [2], [1]) == [pytest.approx(range(5, 10)), None]
    assert part_of((4, 10), torch.ones(4, 5), [Shard(-1)], [2], [1]) == [None, pytest.approx(range(5, 10))]
    assert part_of((10, 4), torch.ones(10, 4), [Partial()], [2], [1]) is None, "one of a sum"
    assert part_of((10, 4), torch.ones(6, 4), [Shard(0)], [2], [1]) is None, "a cut of one's own"


def test_what_it_sees_that_statistics_do_not() -> None:
    whole = torch.randn(8, 8)
    changed = {
        "rows swapped": whole[[1, 0, *range(2, 8)]],
        "transposed": whole.T,
        "one sign": torch.where(torch.arange(64).view(8, 8) == 9, -whole, whole),
        "two elements": torch.cat([whole.view(-1)[[1, 0]], whole.view(-1)[2:]]).view(8, 8),
        "-0 for 0": torch.zeros(8, 8).neg(),
    }
    equal = torch.zeros(8, 8)
    for name, other in changed.items():
        base = equal if name == "-0 for 0" else whole
        assert (other.abs().max(), other.square().sum()) == (base.abs().max(), pytest.approx(base.square().sum()))
        assert hash_of(of_whole(other)) != hash_of(of_whole(base)), name
    assert hash_of(of_whole(whole.clone(memory_format=torch.preserve_format).T.contiguous().T)) == hash_of(
        of_whole(whole)
    ), "strides are nobody's business"


def test_a_step_and_a_reading_have_signs_of_their_own() -> None:
    """So that readings add up to a sketch of them one after the other: +x and then -x are not nothing."""
    whole = torch.randn(1000)
    total = of_whole(whole, 0, 0) + of_whole(-whole, 0, 1) + of_whole(whole, 1, 0)
    assert float(projections(total).square().mean()) == pytest.approx(3 * float(whole.square().sum()), rel=2.5)
    assert float(projections(total).square().mean()) > 0.2 * 3 * float(whole.square().sum())
    assert len({hash_of(of_whole(whole, *each)) for each in ((0, 0), (0, 1), (1, 0))}) == 3


def test_the_distance_is_that_which_it_is_said_to_be_within() -> None:
    """Of 400 pairs; a seed's own luck is in the margins."""
    ratios = []
    for seed in range(400):
        generator = torch.Generator().manual_seed(seed)
        one = torch.randn(30, 20, generator=generator)
        other = one + 1e-3 * torch.randn(30, 20, generator=generator) * (1 + 9 * (torch.arange(20) < 3))
        estimate = (projections(of_whole(one, seed)) - projections(of_whole(other, seed))).square().mean().sqrt()
        ratios.append(float((one.double() - other.double()).norm() / estimate))
    low, high = RANGE_95
    inside = np.mean([(low <= each <= high) for each in ratios])
    assert 0.92 <= inside <= 0.98
    assert np.mean(np.square(np.reciprocal(ratios))) == pytest.approx(1.0, abs=0.1), "no bias"
    assert sum(each < LEAST_999 for each in ratios) <= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn])
def test_nan_and_inf_are_in_the_hash_alone_and_nothing_is_changed(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, float("nan"), 2.0] + [float("inf")] * (dtype is not torch.float8_e4m3fn)).to(dtype)
    before = values.view(torch.uint8).clone()
    sums = of_whole(values)
    assert torch.equal(values.view(torch.uint8), before), "the training's own tensor"
    assert sums[0] == len(values) and sums[3] == 5.0 and bool(sums.isfinite().all())
    clean = torch.where(values.double().isfinite(), values.double(), 0.0).to(dtype)
    assert torch.equal(projections(sums), projections(of_whole(clean)))
    assert hash_of(sums) != hash_of(of_whole(clean))


def test_numbers_that_no_sum_holds_make_nothing_that_the_wire_refuses() -> None:
    sums = of_whole(torch.full((50,), 1.7e308, dtype=torch.float64))
    assert not bool(sums.isnan().any()) and bool((sums >= 0).all())


def test_an_accelerator_comes_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(70, 33)
    expected = of_whole(whole)

    class NotHere(Tensor):
        is_cpu = False  # type: ignore[assignment]

    monkeypatch.setattr(sketch, "DEVICE_ELEMENTS", 100)
    found = of_whole(whole.as_subclass(NotHere)).as_subclass(Tensor)
    assert hash_of(found) == hash_of(expected)
    assert torch.allclose(projections(found), projections(expected), rtol=0, atol=1e-9)


def mixed(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def test_a_hash_and_projections_by_hand() -> None:
    """As they are defined: runs of two versions of the agent are compared."""
    values, step, reading = [0.5, -3.25, 1e-40, 7.0], 41, 2
    total, sums = 0, [0.0] * PROJECTIONS
    for place, value in enumerate(values):
        key = mixed(((place + reading * 4) * 0x9E3779B97F4A7C15 + (step + 1) * 0xA0761D6478BD642F) % 2**64)
        bits = int(torch.tensor(value).view(torch.int32)) % 2**64
        total += mixed((bits * 0xD1342543DE82EF95 % 2**64) ^ key)
        for bit in range(PROJECTIONS):
            sums[bit] += value if key >> bit & 1 else -value
    found = of_whole(torch.tensor(values), step, reading)
    assert hash_of(found) == total % 2**64
    assert projections(found).tolist() == pytest.approx(sums, rel=1e-12)
    assert hash_of(of_whole(torch.tensor(1.5))) == hash_of(of_whole(torch.tensor([[1.5]])))
