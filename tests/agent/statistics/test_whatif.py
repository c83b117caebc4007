"""What-if readings: the casts bit by bit against torch's own, the scales and sums against plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rangewatch.statistics import formats, whatif
from rangewatch.statistics.formats import FORMATS, Element, Format

TORCH = {
    formats.E4M3: torch.float8_e4m3fn, formats.E5M2: torch.float8_e5m2, formats.FLOAT16: torch.float16,
    formats.BFLOAT16: torch.bfloat16,
}  # fmt: skip


def _numbers(count: int, seed: int = 0) -> Tensor:
    """Finite float32 numbers of any bit pattern."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31 - 1, (count,), generator=generator, dtype=torch.int64).to(torch.int32)
    values = bits.view(torch.float32)
    return values[values.isfinite()]


def _codes(element: Element) -> Tensor:
    """All magnitudes that the element holds, made from its definition."""
    steps = torch.arange(2**element.mantissa_bits, dtype=torch.float64)
    unit = 2.0 ** (element.smallest_exponent - element.mantissa_bits)
    normal = [
        2.0**exponent * (1 + steps / 2**element.mantissa_bits)
        for exponent in range(element.smallest_exponent, element.largest_exponent + 1)
    ]
    values = torch.cat([steps * unit, *normal])
    return values[values <= element.largest]


@pytest.mark.parametrize("element", TORCH, ids=lambda each: str(TORCH[each]))
def test_casts_are_torchs(element: Element) -> None:
    near = torch.randn(200_000, generator=torch.Generator().manual_seed(3)) * (element.largest / 8)
    tiny = torch.randn(200_000, generator=torch.Generator().manual_seed(4)) * 2.0**element.smallest_exponent
    values = torch.cat([_numbers(200_000), near, tiny]).clamp(-element.largest, element.largest)
    stored, is_saturated = whatif.cast(values, element)
    assert torch.equal(stored, values.to(TORCH[element]).float())
    assert not is_saturated.any()


@pytest.mark.parametrize("element", [formats.E2M1, formats.E2M3, formats.E3M2, formats.E4M3, formats.E5M2], ids=str)
def test_casts_go_to_the_nearest_code_and_ties_to_even(element: Element) -> None:
    codes = _codes(element)
    assert torch.equal(whatif.cast(codes.float(), element)[0].double(), codes)
    middles = (codes[1:] + codes[:-1]) / 2
    even = torch.where(torch.arange(len(middles)) % 2 == 0, codes[:-1], codes[1:])
    assert torch.equal(whatif.cast(middles.float(), element)[0].double(), even)
    for towards, expected in ((codes[:-1], codes[:-1]), (codes[1:], codes[1:])):
        off = torch.nextafter(middles.float(), towards.float())
        assert torch.equal(whatif.cast(off, element)[0].double(), expected)
    beyond = torch.tensor([element.largest * 1.2, -1e30])
    stored, is_saturated = whatif.cast(beyond, element)
    assert stored.tolist() == [element.largest, -element.largest]
    assert is_saturated.all()


def _nearest(values: np.ndarray, element: Element) -> np.ndarray:
    """By looking through all codes, in float64; ties to the even one."""
    codes = _codes(element).numpy()
    above = np.searchsorted(codes, np.abs(values)).clip(1, len(codes) - 1)
    low, high = codes[above - 1], codes[above]
    middle = (low + high) / 2
    is_high = (np.abs(values) > middle) | ((np.abs(values) == middle) & (above % 2 == 0))
    return np.copysign(np.where(is_high, high, low), values)


def _reference(values: np.ndarray, each: Format, amax: float, previous: float) -> dict[str, float]:
    """The sums of a matrix in float64, block by block."""
    totals = dict.fromkeys(("flushed_count", "saturated_count", "error_sq", "relative_error"), 0.0)
    scales: list[float] = []
    element = each.element
    for row in values:
        width = each.block or len(row)
        for start in range(0, len(row), width):
            block = row[start : start + width]
            largest = np.abs(block).max()
            if each.scaling == "none":
                scale = 1.0
            elif each.scale == "e8m0":
                scale = 2.0 ** (np.floor(np.log2(largest)) - element.largest_exponent) if largest else 1.0
            elif each.scale == "e4m3":
                of_tensor = amax / (448 * 6)
                wanted = np.clip(largest / 6 / of_tensor, 2.0**-6, 448)
                scale = float(_nearest(np.array([wanted]), formats.E4M3)[0]) * of_tensor
            else:
                scale = {"tensor": amax, "delayed": previous, "row": largest}[each.scaling] / element.largest or 1.0
            stored = _nearest(block / scale, element)
            nonzero = block != 0
            error = np.abs(stored * scale - block)[nonzero]
            totals["flushed_count"] += float((stored[nonzero] == 0).sum())
            last_step = element.largest - _codes(element)[-2].item()
            totals["saturated_count"] += float((np.abs(block / scale) > element.largest + last_step / 2).sum())
            totals["error_sq"] += float((error**2).sum())
            totals["relative_error"] += float((error / np.abs(block[nonzero])).sum())
            if largest:
                scales.append(formats.SCALE_BIAS + float(np.log2(scale)))
    if each.scaling != "none":
        scales = scales[:1] if each.scaling in ("tensor", "delayed") else scales
        totals |= {
            "scale_count": len(scales), "scale_log2": sum(scales), "scale_log2_sq": sum(each**2 for each in scales),
        }  # fmt: skip
    return totals


@pytest.mark.parametrize("each", [each for each in FORMATS if each.name != "bfloat16"], ids=lambda each: each.name)
def test_sums_are_those_of_plain_arithmetic(each: Format) -> None:
    generator = torch.Generator().manual_seed(7)
    rows = torch.randn(6, 72, generator=generator) * torch.exp(2 * torch.randn(6, 72, generator=generator))
    rows[1] = 0.0
    rows[2, :40] = 0.0
    amax, previous = float(rows.abs().max()), float(rows.abs().max()) / 4
    sums = whatif.measure(rows, amax, previous)
    for what, wanted in _reference(rows.double().numpy(), each, amax, previous).items():
        value = sums[formats.POSITIONS[formats.column(each.name, what)]]
        assert value == pytest.approx(wanted, rel=1e-4, abs=1e-9), what


@given(st.integers(0, 1000), st.integers(1, 7))
def test_any_grouping_of_rows_gives_the_same_sums(seed: int, first: int) -> None:
    rows = torch.randn(8, 48, generator=torch.Generator().manual_seed(seed))
    amax = float(rows.abs().max())
    whole = whatif.measure(rows, amax, amax)
    parts = whatif.measure(rows[:first], amax, amax) + whatif.measure(rows[first:], amax, amax)
    of_tensor = {each.name for each in FORMATS if each.scaling in ("tensor", "delayed")}
    once = {formats.column(name, what) for name in of_tensor for what in ("scale_count", "scale_log2", "scale_log2_sq")}
    is_once = [name in once for name in formats.POSITIONS]
    np.testing.assert_allclose(parts, np.where(is_once, 2 * whole, whole), rtol=1e-9)


@pytest.mark.parametrize(
    ("tensor", "rows"),
    [
        (torch.tensor(3.0), (1, 1)),
        (torch.randn(70), (1, 70)),
        (torch.randn(5000), (4, 1024)),
        (torch.randn(100, 8), (100, 8)),
        (torch.randn(8, 100).t(), (100, 8)),
        (torch.randn(3, 4, 5, 6).permute(3, 1, 0, 2), (72, 5)),
        (torch.randn(1, 6).expand(1000, 6), (1000, 6)),
        (torch.randn(4, 1000, 64), (256, 64)),
        (torch.randn(64, 1000, 4).permute(2, 1, 0), (256, 64)),
        (torch.randn(3, 40_000), (1, 40_000)),
        (torch.randn(9, 9).to(torch.float8_e4m3fn), (9, 9)),
        (torch.randn(9, 9).double(), (9, 9)),
    ],
    ids=lambda each: str(tuple(each.shape)) if isinstance(each, Tensor) else None,
)
def test_samples_are_whole_rows_evenly_spread(tensor: Tensor, rows: tuple[int, int]) -> None:
    sample = whatif.sample(tensor, 16_384)
    assert tuple(sample.shape) == rows and sample.dtype == torch.float32
    known = {tuple(row) for row in tensor.float().reshape(-1, tensor.shape[-1] if tensor.dim() > 1 else 1).tolist()}
    if tensor.dim() > 1:
        assert {tuple(row) for row in sample.tolist()} <= known


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_left_out(bad: float) -> None:
    rows = torch.randn(4, 64)
    with_bad = rows.clone()
    with_bad[0, 0] = bad
    rows[0, 0] = 0.0
    amax = float(rows.abs().max())
    np.testing.assert_array_equal(whatif.measure(with_bad, amax, amax), whatif.measure(rows, amax, amax))


def test_zeros_are_no_elements_and_have_no_scale() -> None:
    assert not whatif.measure(torch.zeros(4, 64), 0.0, 0.0).any()
