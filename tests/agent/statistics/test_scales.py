"""How scales fit, against torch's own casts over all codes and random values; and sums that merge in any grouping."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from rangewatch.statistics import scaled, scales, sparse
from rangewatch.statistics.formats import SCALE_BIAS
from rangewatch.statistics.sparse import OpenSums

DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
E4M3 = scales.ELEMENTS["E4M3"]


def name_of(dtype: torch.dtype) -> str:
    return scales.OF_DTYPE[str(dtype).removeprefix("torch.")]


@pytest.mark.parametrize("dtype", DTYPES)
def test_limits_are_those_of_torch_by_its_own_casts(dtype: torch.dtype) -> None:
    element = scales.ELEMENTS[name_of(dtype)]
    limits = torch.finfo(dtype)
    assert element.largest == limits.max
    assert 2.0**element.smallest_exponent == limits.smallest_normal
    limit, is_beyond = scales.largest_kept(element)
    flushed = scales.largest_flushed(element)
    for at, expected in ((limit, not is_beyond), (np.nextafter(np.float32(limit), np.float32(0)), True)):
        kept = torch.tensor(float(at)).to(dtype).float()
        assert bool(kept == element.largest) is expected, (dtype, at)
    assert torch.tensor(flushed).to(dtype).float() == 0
    assert torch.tensor(float(np.nextafter(np.float32(flushed), np.float32(1)))).to(dtype).float() != 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_are_those_of_torch_by_its_own_casts(dtype: torch.dtype) -> None:
    element = scales.ELEMENTS[name_of(dtype)]
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(1000, 1000, generator=generator) * torch.exp2(
        torch.randint(-30, 20, (1000, 1000), generator=generator)
    )
    values[0, :5] = torch.tensor([0.0, -0.0, float("nan"), float("inf"), float("-inf")])
    factor = torch.tensor(3.0)
    fit = scaled.of_values(values, factor, element, counts=True)
    assert fit is not None and fit.counts is not None
    finite = values[values.isfinite() & (values != 0)]
    stored = (finite * factor).to(dtype).float()
    # What is beyond becomes Inf or NaN, where the format has it and torch does not saturate.
    unit = 2.0 ** (element.largest_exponent - element.mantissa_bits)
    beyond = (~stored.isfinite()) | ((finite * factor / unit).abs().round() * unit > element.largest)
    assert fit.counts.tolist() == [len(finite), int(beyond.sum()), int((stored == 0).sum())]
    assert float(fit.amax) == float(finite.abs().amax())
    assert float(fit.peaks[0]) == float(finite.abs().amax().double() * 3 / element.largest)


@pytest.mark.parametrize(
    ("shape", "name"),
    [((), "tensor"), ((1, 1), "tensor"), ((64, 1), "row"), ((1, 128), "row"), ((64, 4), "block 1x32"),
     ((32, 2), "block 2x64"), ((1, 2), "block 64x64")],
)  # fmt: skip
def test_scales_of_each_granularity_meet_their_own_block(shape: tuple[int, ...], name: str) -> None:
    torch.manual_seed(1)
    values = torch.randn(64, 128)
    factor = torch.exp2(torch.randint(-8, 8, shape).float()) if shape else torch.tensor(4.0)
    fit = scaled.of_values(values, factor, E4M3, counts=True)
    assert fit is not None and fit.counts is not None
    whole = _spread(factor, values)
    assert float(fit.peaks[0]) == pytest.approx(float((values.abs() * whole).amax()) / 448, rel=1e-12)
    assert float(fit.counts[2]) == int((values.abs() * whole <= 2.0**-10).sum())
    assert float(SCALE_BIAS - fit.peaks[2]) == pytest.approx(float(-factor.log2().amax()), abs=1e-9)
    assert float(fit.peaks[1] - SCALE_BIAS) == pytest.approx(float(-factor.log2().amin()), abs=1e-9)
    assert scaled.granularity(values.shape, factor.shape) == name


def _spread(factor: Tensor, values: Tensor) -> Tensor:
    if factor.dim() == 0:
        return factor.expand_as(values)
    for dim in range(2):
        factor = factor.repeat_interleave(values.shape[dim] // factor.shape[dim], dim)
    return factor


def test_scales_that_do_not_fit_are_refused() -> None:
    assert scaled.of_values(torch.ones(4, 6), torch.ones(4, 4), E4M3, counts=False) is None
    assert scaled.of_values(torch.ones(4, 6), torch.ones(24), E4M3, counts=False) is None
    assert scaled.of_codes(torch.ones(4, 6), torch.ones(0, 6), E4M3) is None


def test_blocks_of_zeros_have_no_scale() -> None:
    """Their scale is whatever their library makes of nothing, such as 1e-12: it would be the range's end."""
    values = torch.zeros(2, 32)
    values[1] = 2.0
    fit = scaled.of_values(values, torch.tensor([[448e12], [224.0]]), E4M3, counts=False)
    assert fit is not None
    assert float(fit.peaks[1]) == float(SCALE_BIAS - (SCALE_BIAS - fit.peaks[1]))
    assert float(SCALE_BIAS - fit.peaks[2]) == pytest.approx(-np.log2(224.0))
    nothing = scaled.of_values(torch.zeros(2, 32), torch.tensor(448e12), E4M3, counts=False)
    assert nothing is not None and nothing.peaks.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_stored_numbers_alone_give_the_same_but_for_what_is_lost(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    element = scales.ELEMENTS[name_of(dtype)]
    values = torch.randn(16, 32)
    scale = values.abs().amax(1, keepdim=True) / element.largest
    codes = (values / scale).clamp(-element.largest, element.largest).to(dtype)
    fit = scaled.of_codes(codes, scale, element)
    assert fit is not None
    assert float(fit.peaks[0]) == 1.0
    decoded = codes.float() * scale
    assert float(fit.amax) == pytest.approx(float(decoded.abs().amax()), rel=1e-6)
    assert float(SCALE_BIAS - fit.peaks[2]) == pytest.approx(float(scale.log2().amin()), abs=1e-6)


def test_any_grouping_of_merges_gives_the_same() -> None:
    rng = np.random.default_rng(0)
    steps = []
    for _ in range(4):
        sums = OpenSums()
        for number in rng.choice(5, 3, replace=False).tolist():
            sums.add(number, sparse.MAXIMA, rng.integers(1, 500, len(scales.MAXIMA)))
            sums.add(number, sparse.MAXIMA, rng.integers(1, 500, len(scales.MAXIMA)))
            sums.add(number, sparse.SCALED_COUNTS, rng.integers(1, 500, len(scales.COUNTS)))
        steps.append(sums.take())
    whole = sparse.merge(steps)
    for first in itertools.permutations(range(4), 2):
        rest = [each for at, each in enumerate(steps) if at not in first]
        other = sparse.merge([sparse.merge([steps[at] for at in first]), *rest])
        assert all(np.array_equal(a, b) for a, b in zip(whole, other, strict=True))
    largest = max(each.values[:, : len(scales.MAXIMA)].max() for each in steps)
    assert whole.values[:, : len(scales.MAXIMA)].max() == largest


@pytest.mark.parametrize("setting", ["bfloat16", "float16", "meta"])
def test_torchs_defaults_change_nothing(setting: str) -> None:
    """As a script sets them while it makes its model, or for good."""
    values, factor = torch.tensor([[70000.125, 1.0]]), torch.tensor(0.0064)
    if setting == "meta":
        with torch.device("meta"):
            fit = scaled.of_values(values, factor, E4M3, counts=False)
    else:
        torch.set_default_dtype(getattr(torch, setting))
        try:
            fit = scaled.of_values(values, factor, E4M3, counts=False)
        finally:
            torch.set_default_dtype(torch.float32)
    assert fit is not None and fit.amax.tolist() == [70000.125] and fit.peaks.is_cpu
