"""The exponent histogram: against numpy for every dtype, merged in any grouping, and through an attached model."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rangewatch
from rangewatch import wire
from rangewatch.core import limits
from rangewatch.core.options import Options
from rangewatch.delivery.batcher import PendingBatch
from rangewatch.recording.events import Drops
from rangewatch.recording.rows.device_ring import DeviceReader
from rangewatch.recording.rows.step_buffer import IDENTITIES, Block, merge_steps, range_rows
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.statistics import exponents, reduce, sparse
from rangewatch.statistics.sparse import OpenSums
from rangewatch.wire.records import RangeRows, RankInfo, TensorEntry
from tests.agent.doubles import own_buffer, sender_of
from tests.agent.ingest_double import IngestDouble
from tests.agent.statistics.reference import KeepEverything
from tests.agent.statistics.test_reduce import DTYPES, FLOAT8, LAYOUTS, awkward, host_reader


def expected(*tensors: Tensor) -> dict[int, int]:
    """Exponent -> elements by numpy, from exact float64 copies."""
    values = np.concatenate([tensor.detach().double().numpy().ravel() for tensor in tensors])
    values = values[np.isfinite(values) & (values != 0)]
    powers = np.clip(np.frexp(values)[1] - 1, exponents.FIRST, exponents.LAST)
    return {int(each): int(count) for each, count in zip(*np.unique(powers, return_counts=True), strict=True)}


def counted(counts: Any) -> dict[int, int]:
    return {index + exponents.FIRST: int(value) for index, value in enumerate(counts) if value}


def measured(tensor: Tensor) -> dict[int, int]:
    return counted(reduce.full_set(tensor, histogram=True).exponents)


def of_patterns(dtype: torch.dtype, seed: int, size: int = 2000) -> Tensor:
    """Random bits, read as `dtype`: every exponent is as frequent, NaN and subnormals included."""
    data = np.random.default_rng(seed).integers(0, 256, (size + 1) * dtype.itemsize, np.uint8)
    return torch.from_numpy(data).view(dtype)[:size]


class TestEqualsNumpy:
    @pytest.mark.parametrize("dtype", DTYPES + FLOAT8, ids=str)
    @settings(max_examples=20)
    @given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 300))
    def test_any_bits(self, dtype: torch.dtype, seed: int, size: int) -> None:
        tensor = of_patterns(dtype, seed, size)
        full = reduce.full_set(tensor, histogram=True)
        assert measured(tensor) == expected(tensor)
        assert full.values == reduce.full_set(tensor).values, "the rest is as without"
        nonfinite = reduce.count_nonfinite(tensor)
        assert full.exponents is not None
        assert full.exponents.sum() + full.values["zero_count"] + nonfinite.nan_count + nonfinite.inf_count == size

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *FLOAT8], ids=str)
    def test_every_number_there_is(self, dtype: torch.dtype) -> None:
        patterns = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
        tensor = torch.from_numpy(patterns.view(f"i{dtype.itemsize}")).view(dtype)
        assert measured(tensor) == expected(tensor)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
    def test_powers_of_two_and_what_is_below_them(self, dtype: torch.dtype) -> None:
        lowest, highest = (-24, 15) if dtype == torch.float16 else (exponents.FIRST, exponents.LAST)
        powers = torch.arange(lowest, highest + 1, dtype=torch.float64).exp2().to(dtype)
        assert measured(powers) == dict.fromkeys(range(lowest, highest + 1), 1)
        assert measured(-torch.nextafter(powers[1:], powers[:-1])) == dict.fromkeys(range(lowest, highest), 1)

    def test_what_only_float64_has_is_in_the_end_bins(self) -> None:
        wide = torch.tensor([5e-324, 2.0**-1000, 2.0**-150, 2.0**127, 2.0**128, 1e308], dtype=torch.float64)
        assert measured(wide) == {exponents.FIRST: 3, exponents.LAST: 3}
        assert "float64" in exponents.ALL[0].help and "float64" in exponents.ALL[-1].help

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_any_strides(self, layout: str) -> None:
        tensor = LAYOUTS[layout](awkward(torch.float16))
        assert measured(tensor) == expected(tensor)

    def test_more_than_a_block(self) -> None:
        tensor = of_patterns(torch.float32, 0, 2 * limits.BLOCK_ELEMENTS + 1)
        assert measured(tensor) == expected(tensor)


def random_block(seed: int, steps: range, tensors: int = 5) -> Block:
    """Every third step has histograms of some of the tensors."""
    generator = np.random.default_rng(seed)
    buffer = own_buffer()
    for _ in range(tensors):
        buffer.row.grow()
    for step in steps:
        for number in range(tensors):
            buffer.row.call_count[number] = 1.0
            if step % 3 == 0 and generator.random() < 0.7:
                tensor = of_patterns(torch.bfloat16, int(generator.integers(1 << 30)), 50)
                buffer.row.sparse.add(number, sparse.EXPONENTS, reduce.full_set(tensor, histogram=True).exponents)  # type: ignore[arg-type]
        buffer.close(step)
    return buffer.take()


def totals(rows: RangeRows | None) -> dict[tuple[str, int], float]:
    assert rows is not None
    bins = {name: values for name, values in rows.columns.items() if exponents.exponent_of(name) is not None}
    assert all(values.any() for values in bins.values()), "an empty bin does not travel"
    return {
        (name, int(number)): float(total)
        for name, values in bins.items()
        for number, total in zip(rows.tensors, values.sum(axis=1), strict=True)
        if total
    }


class TestMerging:
    @settings(max_examples=20)
    @given(st.integers(0, 1000), st.integers(1, 40), st.sampled_from([8, 64]))
    def test_any_grouping_of_steps_is_the_whole(self, seed: int, count: int, every: int) -> None:
        block = random_block(seed, range(seed, seed + count))
        merged = merge_steps(block, every)
        assert totals(range_rows(merged)) == totals(range_rows(block))
        assert set(merged.sums) <= set(merged.steps.tolist())

    def test_each_is_under_the_last_step_of_its_group(self) -> None:
        block = random_block(0, range(12))
        rows = range_rows(merge_steps(block, 8))
        whole = range_rows(block)
        assert rows is not None and whole is not None and rows.steps.tolist() == [7, 11]
        for name, values in whole.columns.items():
            if exponents.exponent_of(name) is not None:
                groups = [values[:, :8].sum(axis=1), values[:, 8:].sum(axis=1)]
                assert (rows.columns[name] == np.stack(groups, axis=1)).all()

    def test_microbatches_add_up_and_a_shared_tensor_counts_twice(self) -> None:
        buffer = own_buffer()
        for _ in range(2):
            buffer.row.grow()
        reader = host_reader(buffer.row)
        reader._histograms = True
        first, second = awkward(torch.float16), awkward(torch.float16, 333, seed=1)
        for number, tensor in ((0, first), (0, second), (1, first), (1, first)):
            reader.read(number, tensor)
        buffer.close(0)
        found = buffer.take().sums[0]
        bins = (exponents.FIRST + found.positions).tolist()
        by_number = [dict(zip(bins, row, strict=True)) for row in found.values.tolist()]
        for number, wanted in enumerate((expected(first, second), expected(first, first))):
            assert {key: value for key, value in by_number[number].items() if value} == wanted


class TestAttached:
    def test_each_full_set_has_one_and_other_steps_none(self, ingest: IngestDouble) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept: list[dict[Any, list[Tensor]]] = []
        with rangewatch.attach(model, optimizer, url=ingest.url, histograms=True, full_every=3):
            everything = KeepEverything(model)
            for step in range(7):
                scale = 1e38 if step == 4 else 1e-3  # not finite after the first layer
                (model(torch.randn(6, 8).bfloat16() * scale).sum() * 1e-30).backward()
                kept.append({key: list(tensors) for key, tensors in everything.kept.items()})
                everything.clear()
                optimizer.step()
                optimizer.zero_grad()
        found, full = histograms(ingest)
        assert {step for _, step in found} == {0, 3, 6}
        for step in (0, 3, 6):
            for key, tensors in kept[step].items():
                assert found.get((key, step), {}) == expected(*tensors), (key, step)
        for (key, step), cell in full.items():
            assert sum(found.get((key, step), {}).values()) == cell["full_numel"] - cell["zero_count"], (key, step)

    def test_nan_and_inf_are_in_no_bin(self, ingest: IngestDouble) -> None:
        model = nn.Sequential(nn.Identity(), nn.Linear(1, 1))
        with rangewatch.attach(model, url=ingest.url, histograms=True, full_every=1) as handle:
            for _ in range(2):
                model[0](awkward(torch.float32))
                handle.step()
        found, full = histograms(ingest)
        for place, cell in full.items():
            outside = cell["zero_count"] + cell["nan_count"] + cell["inf_count"]
            assert cell["nan_count"] and cell["inf_count"]
            assert sum(found[place].values()) + outside == cell["full_numel"] == 1000

    def test_without_the_option_nothing_is_different(self, ingest: IngestDouble) -> None:
        model = nn.Linear(2, 2)
        with rangewatch.attach(model, url=ingest.url, full_every=1) as handle:
            model(torch.ones(1, 2))
            handle.step()
        assert all(opening.catalogue.statistics == sparse.of_catalogue(histograms=False) for opening in ingest.openings)
        assert histograms(ingest)[0] == {}
        assert all(set(batch.ranges.columns) <= set(IDENTITIES) for batch in ingest.batches if batch.ranges)

    def test_the_catalogue_names_the_bins_once_it_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ingest = IngestDouble()
        monkeypatch.setenv("RANGEWATCH_HISTOGRAMS", "1")
        with rangewatch.attach(nn.Linear(2, 2), url=ingest.url):
            pass
        ingest.stop()
        assert ingest.openings[0].catalogue.statistics == sparse.of_catalogue(histograms=True)

    def test_a_device_measures_it_as_the_host_does(self, ingest: IngestDouble) -> None:
        model = nn.Linear(3, 2)
        reference = KeepEverything(model)
        kept = {}
        with rangewatch.attach(model, url=ingest.url, histograms=True, full_every=2, backend="device") as handle:
            for step in range(3):
                for _ in range(2):
                    model(torch.rand(4, 3) - 0.5).sum().backward()
                handle.step()
                kept |= {(key, step): tensors for key, tensors in reference.kept.items() if step % 2 == 0}
                reference.kept = defaultdict(list)
                model.zero_grad()
        found, _ = histograms(ingest)
        assert found == {place: expected(*tensors) for place, tensors in kept.items()}
        assert not ingest.events("fault")

    def test_a_device_ships_before_it_holds_too_many(
        self, ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bytes_ = 2 * 3 * 8 * exponents.BINS  # two steps of three tensors
        monkeypatch.setattr(
            DeviceReader,
            "is_full",
            property(lambda self: sum(ring.sparse_bytes for ring in self._rings.values()) >= bytes_),
        )
        model = nn.Linear(2, 2)
        with rangewatch.attach(
            model, url=ingest.url, histograms=True, full_every=1, backend="device", ship_interval_s=3600,
            kinds=["output", "grad"],
        ) as handle:  # fmt: skip
            for _ in range(6):
                model(torch.ones(1, 2)).sum().backward()
                handle.step()
        steps = [batch.ranges.steps.tolist() for batch in ingest.batches if batch.ranges is not None]
        assert steps == [[0, 1], [2, 3], [4, 5]]

    def test_a_reader_is_full_at_the_size_of_a_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "BUFFER_BYTES", 3 * 8 * exponents.BINS)
        buffer = own_buffer()
        buffer.row.grow()
        reader = DeviceReader(buffer.row)
        reader.counts_exponents = True
        was_full = []
        for _ in range(4):
            reader.read(0, torch.ones(3))
            was_full.append(reader.is_full)
        assert was_full == [False, False, False, True]
        reader.take(1)
        assert not reader.is_full


def histograms(ingest: IngestDouble) -> tuple[dict[Any, dict[int, int]], dict[Any, dict[str, float]]]:
    """((fqn, kind, index), step) -> exponent -> elements; and the same places' full sets."""
    found: dict[Any, dict[int, int]] = {}
    full: dict[Any, dict[str, float]] = {}
    for key, steps in ingest.tensors().items():
        full |= {(key, step): cell for step, cell in steps.items() if cell["full_numel"]}
    for batch in ingest.batches:
        if batch.ranges is None:
            continue
        entries = ingest.catalogues[batch.catalogue]
        for name, values in batch.ranges.columns.items():
            exponent = exponents.exponent_of(name)
            for row, column in [] if exponent is None else np.argwhere(values).tolist():
                entry, step = entries[batch.ranges.tensors[row]], int(batch.ranges.steps[column])
                place = ((entry.fqn, entry.kind, entry.index), step)
                found.setdefault(place, {})[exponent] = int(values[row, column])  # type: ignore[index]
    return found, full


class TestBounds:
    def test_the_buffer_is_full_before_a_batch_is_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "BUFFER_BYTES", 1 << 20)
        buffer = own_buffer()
        tensor = of_patterns(torch.bfloat16, 0)
        counts = reduce.full_set(tensor, histogram=True).exponents
        for _ in range(200):
            buffer.row.grow()
        step = 0
        while not buffer.is_full:
            for number in range(200):
                buffer.row.call_count[number] = 1.0
                if step == 0:
                    buffer.row.sparse.add(number, sparse.EXPONENTS, counts)  # type: ignore[arg-type]
            buffer.close(step)
            step += 1
        block = buffer.take()
        rows = range_rows(block)
        assert rows is not None
        sizes = [values.nbytes for name, values in rows.columns.items() if exponents.exponent_of(name) is not None]
        assert len(block.steps) < 64 and (1 << 19) < sum(sizes) <= 1 << 20
        assert block.nbytes > block.rows.nbytes + 1000, "its histograms count too"
        assert not buffer.is_full

    def test_a_batch_survives_the_wire(self) -> None:
        names = TensorNames(histograms=True)
        for number in range(5):
            names.add(TensorEntry(f"layer.{number}", "output", 0, "bfloat16", (50,), number))
        block = random_block(3, range(10))
        wanted = range_rows(block)
        sender = sender_of(Options(), RankInfo("run", 0, 1, 0, "host", "a", 0), Drops(), names)
        sender.batcher.put(PendingBatch(block, (), 5))
        sender.batcher.encode_all()
        found: Any = wire.decode(sender._queue.first().body)
        assert found.catalogue == wire.catalogue_digest(names.catalogue(5))
        assert wanted is not None and found.ranges.columns.keys() == wanted.columns.keys()
        for name, values in wanted.columns.items():
            assert (found.ranges.columns[name] == values).all()

    def test_more_than_4_billion_elements(self) -> None:
        counts = np.zeros(exponents.BINS, np.int64)
        counts[7] = 2**33 + 1
        row = OpenSums()
        row.add(2, sparse.EXPONENTS, counts)
        columns = sparse.columns({0: row.take()}, [0], np.array([2]))
        assert columns[exponents.column_name(exponents.FIRST + 7)].tolist() == [[2.0**33 + 1]]


def test_names() -> None:
    assert exponents.column_name(-24) == "exponent_-24"
    for exponent, statistic in zip(range(exponents.FIRST, exponents.LAST + 1), exponents.ALL, strict=True):
        assert exponents.exponent_of(statistic.name) == exponent
    assert [exponents.exponent_of(name) for name in ("amax", "exponent_", "exponent_x", "-3")] == [None] * 4
