"""The accelerator's way, forced on CPU tensors: copies are waited for, every step is kept, nothing synchronises."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import rangewatch
from rangewatch.core import limits
from rangewatch.recording.rows.device_ring import DeviceReader, DeviceRing
from rangewatch.recording.rows.step_buffer import POSITIONS
from rangewatch.statistics import reduce
from tests.agent.doubles import own_buffer
from tests.agent.ingest_double import IngestDouble


class FakeEvent:
    """Complete when the test says so."""

    complete = True
    made = 0

    def __init__(self) -> None:
        FakeEvent.made += 1
        self.recorded = False

    def record(self) -> None:
        self.recorded = True

    def query(self) -> bool:
        assert self.recorded, "an event that was not recorded says that it is complete"
        return FakeEvent.complete


@pytest.fixture(autouse=True)
def fake_events(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeEvent.complete = True
    monkeypatch.setattr("rangewatch.recording.rows.device_ring.new_event", lambda device: FakeEvent())


def test_nothing_is_read_before_its_event_is_complete(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 1)
    with rangewatch.attach(model, url=ingest.url, backend="device", ship_interval_s=0) as handle:
        time.sleep(0.1)
        FakeEvent.complete = False
        for step in range(3):
            model(torch.full((1, 2), float(step)))
            handle.log(loss=torch.tensor(float(step)))
            handle.step()
        time.sleep(0.1)
        assert not ingest.tensors() and not ingest.series("loss")
        FakeEvent.complete = True
        while 2 not in ingest.series("loss"):  # each step is a batch of its own; the test's time limit ends this
            time.sleep(0.01)
        assert sorted(ingest.tensors()["", "output", 0]) == [0, 1, 2]
    assert ingest.series("loss") == {0: 0.0, 1: 1.0, 2: 2.0}


def test_a_copy_that_never_completes_does_not_hold_the_end(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 1)
    handle = rangewatch.attach(model, url=ingest.url, backend="device", flush_timeout_s=0.2)
    FakeEvent.complete = False
    model(torch.ones(1, 2))
    handle.step()
    handle.detach()  # did it wait for the copy, pytest's own limit would end this test


class NoSynchronisation(TorchDispatchMode):
    """Fails on operations that make the host wait for the device, or copy from host memory."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "item", "lift_fresh")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.FORBIDDEN, name
        assert not (name == "index" and any(getattr(index, "dtype", None) == torch.bool for index in args[1])), "mask"
        return func(*args, **(kwargs or {}))


def test_measuring_merging_and_copying_never_wait() -> None:
    buffer = own_buffer()
    buffer.row.grow()
    reader = DeviceReader(buffer.row)
    with NoSynchronisation():
        for _ in range(3):
            reader.read(0, torch.ones(5, requires_grad=True))
            reader.put_scalar("loss", 0, torch.ones(1, requires_grad=True))
            reader.end_step()
        reader.take(1)


def test_a_checksum_of_a_step_that_never_closed_harms_no_other() -> None:
    """An exception in the optimizer ends the training there: the last shipment has no row of that step."""
    buffer = own_buffer()
    buffer.row.grow()
    reader = DeviceReader(buffer.row)
    for closes in (True, False):
        reader.read_checksums([(0, torch.ones(4))])
        if closes:
            buffer.close(0)
            reader.end_step()
    block = buffer.take()
    (copy,) = reader.take(1)
    copy.merge_into(block, POSITIONS)
    assert block.rows[POSITIONS["checksum_max"]].shape == (1, 1)
    assert block.rows[POSITIONS["checksum_max"]][0, 0] > 0


def test_the_test_above_can_fail() -> None:
    with NoSynchronisation(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        torch.ones(1).item()
    with NoSynchronisation(), pytest.raises(AssertionError, match="mask"):
        _ = torch.ones(2)[torch.tensor([True, False], dtype=torch.bool)]


def test_growing_keeps_what_is_there() -> None:
    buffer = own_buffer()
    for _ in range(300):
        buffer.row.grow()
    reader = DeviceReader(buffer.row)
    for step, number in enumerate((0, 70, 299)):
        reader.read(number, torch.full((2,), 2.0**step))
        buffer.close(step)
        reader.end_step()
    block = buffer.take()
    for copy in reader.take(300):
        copy.merge_into(block, POSITIONS)
    amax = block.rows[POSITIONS["amax"]]
    assert [tuple(where) for where in np.argwhere(amax)] == [(0, 0), (1, 70), (2, 299)]
    assert amax.max(axis=1).tolist() == [1.0, 2.0, 4.0]
    assert (block.rows[POSITIONS["amin"]][0, 1:] == np.inf).all()


def test_rows_that_grow_are_those_that_are_written_to() -> None:
    """So wide that fewer steps fit: kernels are given addresses, and must never write to rows that are gone."""
    most = limits.BUFFER_BYTES // (8 * len(reduce.COLUMNS) * limits.BUFFER_STEPS)
    buffer = own_buffer()
    for _ in range(most + 2):
        buffer.row.grow()
    reader = DeviceReader(buffer.row)
    found = []
    for number in (most // 2, most + 1):  # the first lot has room for BUFFER_STEPS, the second for fewer
        reader.read(number, torch.full((2,), 3.0))
        (ring,) = reader._rings.values()
        assert ring._rows_address == ring._rows.data_ptr()
        found.append(len(ring._rows))
    assert found[0] == limits.BUFFER_STEPS > found[1]
    for step in range(5):
        reader.read(0, torch.full((2,), float(step)))
        buffer.close(step)
        reader.end_step()
    block = buffer.take()
    for copy in reader.take(most + 2):
        copy.merge_into(block, POSITIONS)
    amax = block.rows[POSITIONS["amax"]]
    assert amax[0, [most // 2, most + 1]].tolist() == [3.0, 3.0]
    assert amax[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


class Stream:
    """What is asked of a device's stream, or of memory: which streams it waited for, or is held for."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []

    def wait_stream(self, stream: Stream) -> None:
        self.streams.append(stream)

    record_stream = wait_stream


def test_reads_on_other_streams_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is held for a stream that it was not made on; and what is copied comes after the reads on all streams."""
    main, side = Stream(), Stream()
    current = [side]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[0])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: id(current[0]), raising=False)
    ring = DeviceRing(torch.device("cpu"), 0, lambda device: None)
    ring.device = torch.device("cuda", 0)
    rows: Any = torch.zeros(1, 1, 1)
    ring._use(rows)  # made on the stream of the side, as where that is the first to show a tensor
    ring._hold(rows)
    ring._wait_for_other_streams()
    assert side.streams == []
    current[0] = main
    ring._rows = held = Stream()  # type: ignore[assignment]
    ring._hold(ring._rows)
    assert held.streams == [main]
    ring._wait_for_other_streams()
    assert main.streams == [side] and side.streams == []
    ring._hold(ring._rows)
    current[0] = side
    ring._wait_for_other_streams()
    assert side.streams == [main]


def test_a_device_that_shows_late_and_then_not_at_all() -> None:
    """Its rows belong to the steps in which it was seen."""
    buffer = own_buffer()
    buffer.row.grow()
    reader = DeviceReader(buffer.row)
    found = []
    for _ in range(2):
        for step in range(4):
            if step == 2:
                reader.read(0, torch.full((2,), 3.0))
            buffer.close(step)
            reader.end_step()
        block = buffer.take()
        for copy in reader.take(1):
            copy.merge_into(block, POSITIONS)
        found.append(block.rows[POSITIONS["amax"]][:, 0].tolist())
    assert found == [[0.0, 0.0, 3.0, 0.0]] * 2


def test_scalars_are_bounded(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DEVICE_SCALARS", 1)
    with rangewatch.attach(nn.Linear(1, 1), url=ingest.url, backend="device", ship_interval_s=3600) as handle:
        for index in range(limits.BUFFER_STEPS + 5):
            handle.log(**{f"value{index}": torch.ones(())})
        assert handle.stats()["dropped"] == {"too_many_values": 5}
        handle.step()


def test_columns_are_statistics() -> None:
    from rangewatch import statistics

    known = {statistic.name: statistic for statistic in statistics.ALL}
    rows = torch.empty(2, len(reduce.COLUMNS), dtype=torch.float64)
    reduce.fill_identities(rows)
    assert rows[0].tolist() == [known[name].identity for name in reduce.COLUMNS]
    row, other = torch.full((len(reduce.COLUMNS),), 3.0), torch.full((len(reduce.COLUMNS),), 5.0)
    reduce.merge(row, other)
    merged = {"max": 5.0, "min": 3.0, "sum": 8.0}
    assert row.tolist() == [merged[known[name].merge] for name in reduce.COLUMNS]


def test_what_a_cuda_graph_captures_is_not_observed(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 1)
    with rangewatch.attach(model, url=ingest.url, backend="device") as handle:
        for is_captured in (False, True, False):
            monkeypatch.setattr("rangewatch.recording.observer.is_being_captured", lambda tensor: is_captured)  # noqa: B023
            model(torch.ones(1, 2))
            handle.step()
        assert handle.stats()["skipped"]["cuda_graph"] == 1
    assert sorted(ingest.tensors()["", "output", 0]) == [0, 2]


def test_while_a_graph_is_captured_no_step_ends_and_no_value_is_there(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be queued then, the copy to the host among it, would be done again at each replay."""
    model = nn.Linear(2, 1)
    with rangewatch.attach(model, url=ingest.url, backend="device", cuda_graphs=True) as handle:
        for is_captured in (False, True, False):
            for name in ("observer.is_being_captured", "logged_values.is_being_captured"):
                monkeypatch.setattr(f"rangewatch.recording.{name}", lambda tensor: is_captured)  # noqa: B023
            monkeypatch.setattr("rangewatch.api.agent.is_capturing", lambda: is_captured)  # noqa: B023
            handle.log(loss=model(torch.ones(1, 2)).sum())
            handle.step()
        assert handle.stats()["dropped"] == {"captured_value": 1}
        reasons = handle._agent.observer.not_observed  # type: ignore[union-attr]
        assert reasons == {"": "captured in a CUDA graph before anything like it was read outside of one"}
    assert sorted(ingest.tensors()["", "output", 0]) == sorted(ingest.series("loss")) == [0, 1]


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_large_tensors_are_measured_in_blocks(monkeypatch: pytest.MonkeyPatch, layout: str, dtype: torch.dtype) -> None:
    tensor = torch.linspace(-3.0, 3.0, 400).to(dtype).reshape(20, 20)
    tensor[3, 3], tensor[7, 1], tensor[19, 19], tensor[0, 5] = float("nan"), float("inf"), 0.0, 1e-40
    shown = {"contiguous": tensor, "transposed": tensor.t(), "sliced": tensor[:, ::3]}[layout]
    whole = reduce.measure(shown, torch.float64)
    sizes: list[int] = []
    measure = reduce._measure
    monkeypatch.setattr(
        reduce, "_measure", lambda values, kind: (sizes.append(values.numel()), measure(values, kind))[1]
    )
    monkeypatch.setattr(limits, "DEVICE_BLOCK_ELEMENTS", 64)
    with NoSynchronisation():
        blocks = reduce.measure(shown, torch.float64)
    assert sum(sizes) == shown.numel() and max(sizes) <= 64 and len(sizes) > 2
    torch.testing.assert_close(blocks, whole, rtol=1e-12, atol=0.0)


def test_of_an_expanded_tensor_each_element_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.tensor([0.0, -2.0, float("nan"), float("inf"), 1e-40])
    once = reduce.measure(tensor, torch.float64)
    monkeypatch.setattr(limits, "DEVICE_BLOCK_ELEMENTS", 4)
    expanded = reduce.measure(tensor[:, None].expand(3, 5, 1 << 40), torch.float64)
    assert torch.equal(expanded[:2], once[:2]) and torch.equal(expanded[2:], once[2:] * 3.0 * 2**40)


def test_many_at_once_are_as_one_by_one() -> None:
    found = []
    for is_many in (False, True):
        buffer = own_buffer()
        for _ in range(100):
            buffer.row.grow()
        reader = DeviceReader(buffer.row)
        pairs = [
            (99, torch.full((3,), 5.0)),
            (0, torch.ones(2, 2).t()),
            (0, torch.full((1,), -7.0)),
            (5, torch.ones(0)),
        ]
        with NoSynchronisation():
            if is_many:
                reader.read_many(pairs)
            else:
                for number, tensor in pairs:
                    reader.read(number, tensor)
        buffer.close(0)
        reader.end_step()
        block = buffer.take()
        for copy in reader.take(100):
            copy.merge_into(block, POSITIONS)
        assert block.rows[POSITIONS["call_count"]][0, [0, 5, 99]].tolist() == [2, 1, 1]
        found.append(block.rows)
    assert np.array_equal(*found)


def test_the_reason_for_torchs_operations_can_be_read() -> None:
    buffer = own_buffer()
    buffer.row.grow()
    reader = DeviceReader(buffer.row)
    reader.times_step = 3
    reader.read(0, torch.ones(2))
    reader.end_step()
    assert reader.why_not_fused() == {"cpu": "on a CPU"}
    assert reader.times_step is None and reader.take_device_costs() == {}


def test_no_copy_is_made_of_what_lies_without_gaps() -> None:
    for values in (
        torch.ones(4, 5),
        torch.ones(4, 5).t(),
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ):
        assert reduce._flat(values).data_ptr() == values.data_ptr()
