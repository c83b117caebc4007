"""The statistics of a tensor against numpy's, for every dtype, with every kind of awkward value and layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rangewatch.recording import observer
from rangewatch.recording.nonfinite import nonfinite_context
from rangewatch.recording.observer import HostReader
from rangewatch.recording.rows.device_ring import DeviceReader
from rangewatch.recording.rows.step_buffer import IDENTITIES, POSITIONS, Block, StepRow
from rangewatch.recording.tensor_names import CallOrder
from rangewatch.statistics import checksum, reduce
from tests.agent.doubles import own_buffer

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
PATHS = ["host", "device"]


def host_reader(row: StepRow) -> HostReader:
    def others(number: int, tensor: Tensor) -> None:
        raise AssertionError("a plain CPU tensor is read here")

    return HostReader(row, CallOrder(), others)


def observed(path: str, *tensors: Tensor) -> dict[str, float]:
    """What the agent records of `tensors` as one tensor in one step."""
    buffer = own_buffer()
    buffer.row.grow()
    reader: Any = host_reader(buffer.row) if path == "host" else DeviceReader(buffer.row)
    for tensor in tensors:
        reader.read(0, tensor)
    buffer.close(0)
    block = buffer.take()
    if path == "device":
        reader.end_step()
        for copy in reader.take(1):
            copy.merge_into(block, POSITIONS)
    return {name: float(block.rows[position, 0, 0]) for name, position in POSITIONS.items()}


def expected(*tensors: Tensor) -> dict[str, float]:
    """The same by numpy, from exact float64 copies (numpy has no bfloat16 or float8)."""
    flat = [tensor.detach().double().numpy().ravel() for tensor in tensors]
    values = np.concatenate(flat) if flat else np.empty(0)
    finite = np.abs(values[np.isfinite(values)])
    nonzero = finite[finite > 0]
    with np.errstate(over="ignore", under="ignore"):  # float64 values beyond 1e154: their squares are Inf for both
        sum_sq = (finite**2).sum()
    return {
        "call_count": len(tensors),
        "numel": values.size,
        "amax": finite.max(initial=0.0),
        "nan_count": np.isnan(values).sum(),
        "inf_count": np.isinf(values).sum(),
        "full_numel": values.size,
        "amin": nonzero.min(initial=np.inf),
        "zero_count": (finite == 0).sum(),
        "subnormal_count": (nonzero < torch.finfo(tensors[0].dtype).smallest_normal).sum(),
        "sum_sq": sum_sq,
    }


def assert_equal(found: dict[str, float], wanted: dict[str, float]) -> None:
    assert found.keys() == IDENTITIES.keys()
    for name, value in wanted.items():
        if name == "sum_sq":  # the order of a float64 sum is not ours to fix
            assert found[name] == pytest.approx(value, rel=1e-12)
        else:
            assert found[name] == value, name


def awkward(dtype: torch.dtype, size: int = 1000, *, seed: int = 0) -> Tensor:
    """NaN, both infinities, both zeros, subnormals, the limits, and ordinary values of all magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    limits = torch.finfo(dtype)
    values = torch.randn(size, generator=generator, dtype=wide)
    values *= 2.0 ** torch.randint(-20, 8, (size,), generator=generator)
    special = [0.0, -0.0, limits.max, -limits.max, limits.smallest_normal, limits.smallest_normal / 2, limits.tiny]
    special += [float("nan"), float("inf"), float("-inf")]
    for position, value in enumerate(special):
        values[position :: 3 * len(special)] = value
    return values.clamp(-limits.max, limits.max).to(dtype) if dtype in FLOAT8 else values.to(dtype)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES + FLOAT8, ids=str)
class TestEqualsNumpy:
    def test_awkward_values(self, path: str, dtype: torch.dtype) -> None:
        assert_equal(observed(path, awkward(dtype)), expected(awkward(dtype)))

    def test_finite_values(self, path: str, dtype: torch.dtype) -> None:
        tensor = torch.linspace(-3, 2, 999, dtype=torch.float32).to(dtype)
        assert_equal(observed(path, tensor), expected(tensor))

    @pytest.mark.parametrize("value", [0.0, -0.0, 1.5, float("nan"), 1e-7, -7.0])
    def test_one_element(self, path: str, dtype: torch.dtype, value: float) -> None:
        for tensor in (torch.tensor(value).to(dtype), torch.tensor([value]).to(dtype)):
            assert_equal(observed(path, tensor), expected(tensor))

    def test_empty(self, path: str, dtype: torch.dtype) -> None:
        tensor = torch.empty(0, 3).to(dtype)
        assert_equal(observed(path, tensor), expected(tensor))

    def test_only_nonfinite(self, path: str, dtype: torch.dtype) -> None:
        tensor = torch.full((5,), float("nan")).to(dtype)
        assert_equal(observed(path, tensor), expected(tensor))


LAYOUTS = {
    "transposed": lambda t: t.view(20, 50).t(),
    "permuted": lambda t: t.view(4, 5, 50).permute(2, 0, 1),
    "channels_last": lambda t: t.view(2, 5, 10, 10).to(memory_format=torch.channels_last),
    "sliced": lambda t: t.view(20, 50)[:, 10:30],
    "every_third": lambda t: t[::3],
    "expanded": lambda t: t.view(20, 1, 50).expand(20, 7, 50),
    "expanded_scalar": lambda t: t[3].expand(6, 4),
    "expanded_transposed": lambda t: t.view(1, 20, 50).expand(3, 20, 50).transpose(1, 2),
    "overlapping": lambda t: t.as_strided((100, 20), (3, 1)),
    "zero_dim": lambda t: t[17],
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES + FLOAT8[:1], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides(path: str, dtype: torch.dtype, layout: str) -> None:
    tensor = LAYOUTS[layout](awkward(dtype))
    assert_equal(observed(path, tensor), expected(tensor))


@pytest.mark.parametrize("size", [reduce.BLOCK_ELEMENTS, reduce.BLOCK_ELEMENTS + 1, 3 * reduce.BLOCK_ELEMENTS - 1])
@pytest.mark.parametrize("layout", ["contiguous", "strided", "transposed"])
def test_more_than_a_block(size: int, layout: str) -> None:
    tensor = awkward(torch.float32, 2 * size)
    tensor = {"contiguous": tensor[:size], "strided": tensor[::2], "transposed": tensor.view(2, size).t()}[layout]
    assert_equal(observed("host", tensor), expected(tensor))


def test_blocks_are_small_and_cover_everything_once() -> None:
    tensor = torch.arange(700 * 601, dtype=torch.float64).view(700, 601)[:, :600]
    pieces = list(reduce.blocks(tensor))
    assert all(piece.numel() <= reduce.BLOCK_ELEMENTS and piece.is_contiguous() for piece in pieces)
    assert torch.equal(torch.cat([piece.reshape(-1) for piece in pieces]).sort().values, tensor.reshape(-1))


def test_lazily_negated_tensors() -> None:
    tensor = torch._neg_view(awkward(torch.float32))
    assert tensor.is_neg()
    assert_equal(observed("host", tensor), expected(tensor.resolve_neg()))


def test_float64_amax_is_exact() -> None:
    tensor = torch.tensor([1e300, -1.0000000000000002e300, 5e-324], dtype=torch.float64)
    assert observed("host", tensor)["amax"] == 1.0000000000000002e300
    assert observed("host", tensor)["amin"] == 5e-324


@pytest.mark.parametrize("path", PATHS)
def test_a_tensor_that_requires_grad_gains_no_graph(path: str) -> None:
    leaf = torch.ones(3, requires_grad=True)
    tensor = leaf * 2
    grad_fn = tensor.grad_fn
    observed(path, tensor)
    assert torch.is_grad_enabled() and tensor.grad_fn is grad_fn
    tensor.sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize("dtype", [*DTYPES, *FLOAT8])
@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_a_storage_can_still_be_resized(dtype: torch.dtype, value: float) -> None:
    """FSDP2 frees the storage of each parameter after its use; `Tensor.numpy` forbids that for ever."""
    tensor = torch.full((8, 8), value).to(dtype)
    storage = tensor.untyped_storage()
    observed("host", tensor)
    checksum.of_host(tensor)
    details = nonfinite_context._details("weight", tensor, {})
    assert bool(details.nan_count) == bool(tensor.double().isnan().any())
    assert storage.resizable()
    storage.resize_(0)


def _values(dtype: torch.dtype) -> st.SearchStrategy[list[float]]:
    limits = torch.finfo(dtype)
    special = st.sampled_from(
        [0.0, -0.0, limits.max, limits.smallest_normal, float("nan"), float("inf"), float("-inf")]
    )
    return st.lists(st.one_of(special, st.floats(width=32)), max_size=30)


@settings(max_examples=25)
@given(st.data(), st.sampled_from(DTYPES), st.sampled_from(PATHS))
def test_any_values_equal_numpys(data: st.DataObject, dtype: torch.dtype, path: str) -> None:
    tensor = torch.tensor(data.draw(_values(dtype)), dtype=torch.float32).to(dtype)
    assert_equal(observed(path, tensor), expected(tensor))


@settings(max_examples=25)
@given(st.data(), st.sampled_from(PATHS))
def test_merging_in_any_grouping_equals_the_whole(data: st.DataObject, path: str) -> None:
    """Calls in a step, then steps grouped at random by the catalogue's own merges, against numpy over everything."""
    drawn = data.draw(st.lists(_values(torch.float32), min_size=1, max_size=6))
    pieces = [torch.tensor(values, dtype=torch.float32) for values in drawn]
    whole = expected(*pieces)
    cut = sorted(data.draw(st.sets(st.integers(1, max(1, len(pieces) - 1)))) & set(range(1, len(pieces))))
    groups = [pieces[start:stop] for start, stop in zip([0, *cut], [*cut, len(pieces)], strict=True)]
    rows = [observed(path, *group) for group in groups]
    merged = dict(IDENTITIES)
    for row in data.draw(st.permutations(rows)):
        merged = {name: _merge(name, merged[name], row[name]) for name in merged}
    assert_equal(merged, whole)


def _merge(name: str, left: float, right: float) -> float:
    from rangewatch import statistics

    rule = {statistic.name: statistic.merge for statistic in statistics.ALL}[name]
    return {"max": max, "min": min, "sum": lambda a, b: a + b}[rule](left, right)


class TestReadOnce:
    """The same tensor seen again is not read again, unless its contents changed."""

    @staticmethod
    def reader(monkeypatch: pytest.MonkeyPatch) -> tuple[HostReader, StepRow, list[int]]:
        row, reads, original = StepRow(), list[int](), observer._aminmax
        for _ in range(3):
            row.grow()
        monkeypatch.setattr(observer, "_aminmax", lambda tensor: reads.append(tensor.numel()) or original(tensor))
        reader = host_reader(row)
        reader.begin_step(is_full=False)
        return reader, row, reads

    def test_shown_under_each_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reader, row, reads = self.reader(monkeypatch)
        tensor = torch.tensor([1.0, -4.0, float("inf")])
        reader.read(0, tensor)
        first_reads = len(reads)
        reader.read(1, tensor)
        assert len(reads) == first_reads
        assert list(row.amax[:2]) == [4.0, 4.0] and list(row.inf_count[:2]) == [1.0, 1.0]

    def test_an_inplace_change_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reader, row, _ = self.reader(monkeypatch)
        tensor = torch.tensor([1.0, -4.0])
        reader.read(0, tensor)
        tensor.mul_(10)
        reader.read(1, tensor)
        assert list(row.amax[:2]) == [4.0, 40.0]

    def test_an_inplace_change_through_a_view_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reader, row, _ = self.reader(monkeypatch)
        tensor = torch.tensor([1.0, -4.0])
        reader.read(0, tensor)
        tensor[:1].mul_(10)
        reader.read(1, tensor)
        assert list(row.amax[:2]) == [4.0, 10.0]

    def test_another_tensor_in_the_same_memory_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Allocators hand a freed tensor's address to the next of its size: an address alone proves nothing."""
        reader, row, _ = self.reader(monkeypatch)
        for number in range(3):
            reader.read(number, torch.full((1000,), float(number + 1)))
        assert list(row.amax) == [1.0, 2.0, 3.0]

    def test_nothing_is_kept_alive(self) -> None:
        import weakref

        row = StepRow()
        row.grow()
        reader, tensor = host_reader(row), torch.ones(4)
        reader.read(0, tensor)
        alive = weakref.ref(tensor)
        del tensor
        assert alive() is None

    def test_inference_tensors(self) -> None:
        row = StepRow()
        row.grow()
        with torch.inference_mode():
            reader, tensor = host_reader(row), torch.ones(4)
            reader.read(0, tensor)
            tensor.mul_(3)
            reader.read(0, tensor)
        assert row.amax[0] == 3.0 and row.call_count[0] == 2.0


def test_block_bytes() -> None:
    block = Block(np.arange(2), np.zeros((10, 2, 3)), {"loss": {0: 1.0}})
    assert block.nbytes >= 10 * 2 * 3 * 8
