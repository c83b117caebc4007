"""Rows of the open and the closed steps on one accelerator, and the asynchronous copy that brings them to the host.

The training thread queues operations here and never waits; the sender's thread reads a copy only when its event says
that it is complete (a non-blocking copy read before that is garbage).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from rangewatch.core import limits
from rangewatch.recording.rows.graph_rows import COUNTS, GraphRows
from rangewatch.recording.rows.step_buffer import Block, StepRow
from rangewatch.statistics import ON_DEVICE, UFUNCS, balanced, checksum, exponents, sparse
from rangewatch.statistics.fused import DeviceCost, DeviceTime, FusedReads
from rangewatch.statistics.reduce import count_exponents, fill_identities, measure, merge
from rangewatch.statistics.sparse import OpenSums, Sums
from rangewatch.wire.records import FloatArray

_COLUMN_BYTES = 8 * len(ON_DEVICE)


class CopyEvent(Protocol):
    """What is needed of a device's event."""

    def record(self) -> None:
        """Mark the end of what is queued so far."""

    def query(self) -> bool:
        """Whether all of that is done."""
        ...


class Scalar(NamedTuple):
    """Where a value that a device holds belongs."""

    name: str
    step: int


class ColumnPlace(NamedTuple):
    """Where a value belongs that few tensors have: `step` of the block, `number` of the tensor, the columns' names."""

    step: int
    number: int
    columns: tuple[str, ...]


class SumsPlace(NamedTuple):
    """Where sums belong that few tensors have: `step` of the block, `number` of the tensor, `part` of `sparse.ALL`."""

    step: int
    number: int
    part: slice


class HistogramPlace(NamedTuple):
    """Where a histogram belongs: `step` of the block and `number` of the tensor."""

    step: int
    number: int


class Replayed(NamedTuple):
    """What CUDA graphs have written: `rows` (steps, numbers, columns) of `graph_rows`."""

    steps: list[int]
    numbers: tuple[int, ...]
    rows: Tensor


class PendingCopy:
    """A copy on its way: rows (steps, tensors, `ON_DEVICE`), scalars with what they are, and values of columns.

    `places`: of each value of `of_columns` the step of the block, the number of the tensor, and the columns. `counts`:
    (n, exponents.BINS) histograms, each with its place in `histograms`. `sums`: one after the other, those of each of
    `sums_places`.
    """

    def __init__(
        self, rows: Tensor, values: Tensor, scalars: list[Scalar], of_columns: Tensor, places: list[ColumnPlace],
        counts: Tensor, histograms: list[HistogramPlace], sums: Tensor, sums_places: list[SumsPlace],
        replayed: Replayed | None, event: CopyEvent | None,
    ) -> None:  # fmt: skip
        self._rows, self._values, self._scalars, self._event = rows, values, scalars, event
        self._of_columns, self._places = of_columns, places
        self._sums, self._sums_places = sums, sums_places
        self._counts, self._histograms, self._replayed = counts, histograms, replayed
        self.nbytes = rows.nbytes + counts.nbytes + sums.nbytes + (replayed.rows.nbytes if replayed else 0)
        self.is_empty = not rows.numel() and not scalars and not histograms and not sums_places and not replayed

    def is_complete(self) -> bool:
        """Whether it may be read; never waits."""
        return self._event is None or self._event.query()

    def merge_into(self, block: Block, columns: dict[str, int]) -> None:
        """Merge into a block of the same steps; `columns`: position of each statistic there. Call when complete."""
        rows: FloatArray = self._rows.numpy().astype(np.float64)
        for position, statistic in enumerate(ON_DEVICE):
            target = block.rows[columns[statistic.name]][:, : rows.shape[1]]
            UFUNCS[statistic.merge](target, rows[:, : target.shape[1], position], out=target)
        for scalar, value in zip(self._scalars, self._values.tolist(), strict=True):
            block.series.setdefault(scalar.name, {})[scalar.step] = value
        for (step, number, names), value in zip(self._places, self._of_columns.tolist(), strict=True):
            if step >= block.rows.shape[1]:  # of the open step: it ended in its optimizer, and has no row
                continue
            for name in names:  # of several calls in a step the largest magnitude; of all else there is one
                known = block.rows[columns[name], step, number] if name == "amax" else value
                block.rows[columns[name], step, number] = max(known, value)
        self._merge_sparse(block)
        if self._replayed is not None:
            _merge_replayed(self._replayed, block, columns)

    def _merge_sparse(self, block: Block) -> None:
        by_step: dict[int, OpenSums] = {}
        for (place, number), counts in zip(self._histograms, self._counts.numpy(), strict=True):
            if place < len(block.steps):
                by_step.setdefault(int(block.steps[place]), OpenSums()).add(number, sparse.EXPONENTS, counts)
        begin, values = 0, self._sums.numpy()
        for place, number, part in self._sums_places:
            end = begin + part.stop - part.start
            if place < len(block.steps):
                by_step.setdefault(int(block.steps[place]), OpenSums()).add(number, part, values[begin:end])
            begin = end
        known = cast("dict[int, Sums]", block.sums)
        for step, sums in by_step.items():
            known[step] = sparse.merge([known[step], sums.take()]) if step in known else sums.take()


def _merge_replayed(replayed: Replayed, block: Block, columns: dict[str, int]) -> None:
    rows: FloatArray = replayed.rows.numpy().astype(np.float64)
    is_there = np.array(replayed.steps) < block.rows.shape[1]
    steps, numbers = np.array(replayed.steps)[is_there, None], np.array(replayed.numbers)[None, : rows.shape[1]]
    names = [(each.name, UFUNCS[each.merge]) for each in ON_DEVICE] + [(name, np.add) for name in COUNTS]
    for position, (name, merge_two) in enumerate(names):
        values = block.rows[columns[name]]
        values[steps, numbers] = merge_two(values[steps, numbers], rows[is_there, :, position])
    full = block.rows[columns["full_numel"]]
    full[steps, numbers] += rows[is_there, :, -1]  # a device measures the full set each time


class DeviceRing:
    """Preallocated rows on one device. `slot` is the open step's, the number of closed steps before it."""

    def __init__(
        self, device: torch.device, slot: int, make_event: Callable[[torch.device], CopyEvent | None], *,
        reads_graphs: bool = False,
    ) -> None:  # fmt: skip
        # MPS has no float64: counts above 2^24 elements are then rounded.
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        self.device, self._make_event = device, make_event
        self.slot = slot
        self._stream: Any
        self._side_streams: set[Any] = set()
        """Streams other than that of the rows on which reads were queued since these were last waited for."""
        self._use(self._empty_rows(0, 0))
        self._scalar_values = torch.zeros(0, dtype=self.dtype, device=device)
        self._scalars: list[Scalar] = []
        self._of_columns: list[Tensor] = []
        self._places: list[ColumnPlace] = []
        self._histograms: list[HistogramPlace] = []
        self._counts: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._sums_places: list[SumsPlace] = []
        self._graphs = GraphRows(device) if reads_graphs else None
        self.fused = FusedReads(device)
        self.time = DeviceTime(functools.partial(torch.cuda.Event, enable_timing=True))

    def merge(self, number: int, tensor: Tensor) -> None:
        """Measure a tensor of this device and merge it into the open step. Queues operations only."""
        if not self.fused.read(self._address(number), tensor):
            self._merge(number, tensor)

    def merge_many(self, pairs: Sequence[tuple[int, Tensor]]) -> None:
        """The same for many (number, tensor), in few launches."""
        self._make_room(max(number for number, _ in pairs))  # it moves the rows
        left = self.fused.read_many([(self._address(number), tensor) for number, tensor in pairs])
        for index in left:
            self._merge(*pairs[index])

    def count_exponents(self, number: int, tensor: Tensor) -> None:
        """Queue the histogram of a tensor in the open step. A device without float64 has none."""
        if self.dtype is not torch.float64:
            return
        place = len(self._histograms) % limits.HISTOGRAMS_AT_ONCE
        if place == 0:
            shape = limits.HISTOGRAMS_AT_ONCE, exponents.BINS
            self._counts.append(torch.zeros(shape, dtype=torch.int64, device=self.device))
        row = self._counts[-1][place]
        self._hold(self._counts[-1])
        if not self.fused.count_exponents(row.data_ptr(), tensor):
            row += count_exponents(tensor)
        self._histograms.append(HistogramPlace(self.slot, number))

    @property
    def sparse_bytes(self) -> int:
        """Bytes of histograms and of sums that wait."""
        return 8 * exponents.BINS * len(self._histograms) + sum(each.nbytes for each in self._sums)

    def capture(self, number: int, tensor: Tensor) -> bool:
        """Put the read of a tensor into the CUDA graph that is being captured; False when that is not possible."""
        row = self._graphs.row(number) if self._graphs else None
        if row is None or not self.fused.capture(row.data_ptr(), tensor):
            return False
        assert self._graphs is not None
        self._graphs.keep(number)
        return True

    def end_step(self, slot: int) -> None:
        """The open step is closed, and the next one is in this slot."""
        if self._graphs is not None:
            self._graphs.end_step(self.slot)
        self.slot = slot

    def _merge(self, number: int, tensor: Tensor) -> None:
        self._make_room(number)
        self._hold(self._rows)
        with torch.no_grad():
            merge(self._rows[self.slot, number], measure(tensor, self.dtype))

    def _address(self, number: int) -> int:
        self._make_room(number)
        self._hold(self._rows)
        return self._rows_address + (self.slot * self._rows.shape[1] + number) * _COLUMN_BYTES

    def _make_room(self, number: int) -> None:
        if number >= self._rows.shape[1] or self.slot >= self._rows.shape[0]:
            self._grow(number + 1)

    def put_scalar(self, scalar: Scalar, value: Tensor) -> bool:
        """Keep a one-element tensor of this device for a series; False when there is no room for more."""
        if not len(self._scalar_values):
            cells = limits.DEVICE_SCALARS * limits.BUFFER_STEPS
            self._scalar_values = torch.zeros(cells, dtype=self.dtype, device=self.device)
        if len(self._scalars) == len(self._scalar_values):
            return False
        with torch.no_grad():
            self._scalar_values[len(self._scalars)].copy_(value.detach().reshape(()), non_blocking=True)
        self._scalars.append(scalar)
        return True

    def put_checksums(self, pairs: Sequence[tuple[int, Tensor]], weight: int | None) -> None:
        """Queue the checksums of (number, tensor) in the open step; they stay on the device until `take`."""
        sums = checksum.on_device([tensor for _, tensor in pairs])
        if weight is None:
            self.put_columns([(number, ("checksum_max", "checksum_min")) for number, _ in pairs], sums)
        else:
            self.put_columns([(number, ("axis_checksum",)) for number, _ in pairs], sums)
            self.put_columns([(number, ("axis_balance",)) for number, _ in pairs], balanced(sums, weight))

    def put_columns(self, places: Sequence[tuple[int, tuple[str, ...]]], values: Tensor) -> None:
        """Keep values, (n,) of this device, for the columns of a number each in the open step, until `take`."""
        self._of_columns.append(values.to(self.dtype))
        self._places += [ColumnPlace(self.slot, *place) for place in places]

    def put_sums(self, number: int, part: slice, values: Tensor) -> None:
        """Keep values of this device for a `part` of `sparse.ALL`, of a number in the open step, until `take`."""
        self._sums.append(values.to(self.dtype))
        self._sums_places.append(SumsPlace(self.slot, number, part))

    def take(self, tensors: int) -> PendingCopy:
        """Begin the copy of all closed steps, and empty the ring; `slot` is 0 again."""
        if self.slot > self._rows.shape[0]:
            self._grow(self._rows.shape[1])  # steps in which this device showed no tensor
        self._wait_for_other_streams()
        with _current(self.device):
            rows = self._to_host(self._rows[: self.slot, :tensors])
            values = self._to_host(self._scalar_values[: len(self._scalars)])
            of_columns = self._to_host(torch.cat(self._of_columns)) if self._of_columns else torch.zeros(0)
            counts = self._to_host(torch.cat(self._counts)[: len(self._histograms)]) if self._counts else _NO_COUNTS
            sums = self._to_host(torch.cat(self._sums)) if self._sums else torch.zeros(0)
            replayed = self._take_replayed()
            event = self._make_event(self.device)
            if event is not None:
                event.record()
        fill_identities(self._rows[: self.slot])  # queued behind the copy, on the same stream
        scalars, places, histograms, sums_places = self._scalars, self._places, self._histograms, self._sums_places
        self.slot, self._scalars, self._of_columns, self._places = 0, [], [], []
        self._counts, self._histograms, self._sums, self._sums_places = [], [], [], []
        return PendingCopy(
            rows, values, scalars, of_columns, places, counts, histograms, sums, sums_places, replayed, event
        )

    def _take_replayed(self) -> Replayed | None:
        slots, rows = self._graphs.take() if self._graphs else ([], None)
        if rows is None or self._graphs is None:
            return None
        return Replayed(slots, self._graphs.numbers, self._to_host(rows))

    def _to_host(self, values: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return values.clone()
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=self.device.type == "cuda")
        return host.copy_(values, non_blocking=True)

    def _grow(self, tensors: int) -> None:
        capacity = self._rows.shape[1]
        if tensors > capacity:
            capacity = max(64, tensors, 2 * capacity)
        steps = max(self.slot + 1, min(limits.BUFFER_STEPS, limits.BUFFER_BYTES // (capacity * _COLUMN_BYTES or 1)))
        rows = self._empty_rows(steps, capacity)
        used = min(steps, len(self._rows))  # wider rows may be fewer; those behind the open step's are empty
        self._wait_for_other_streams()
        rows[:used, : self._rows.shape[1]] = self._rows[:used]
        self._use(rows)

    def _empty_rows(self, steps: int, tensors: int) -> Tensor:
        rows = torch.empty(steps, tensors, len(ON_DEVICE), dtype=self.dtype, device=self.device)
        fill_identities(rows)
        return rows

    def _use(self, rows: Tensor) -> None:
        # Kernels write to this address, whoever's memory lies there: it must never be that of other rows than these.
        self._rows, self._rows_address = rows, rows.data_ptr()
        self._stream_number = self._current_stream_number()
        self._stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

    def _current_stream_number(self) -> int:
        return int(torch._C._cuda_getCurrentRawStream(self.device.index)) if self.device.type == "cuda" else 0

    def _hold(self, memory: Tensor) -> None:
        """Torch gives freed memory out again in the order of the stream that made it. A read that is queued on another
        stream may come later, and would write into what is then somebody else's."""
        is_side = self._current_stream_number() != self._stream_number
        if is_side or (memory is not self._rows and self.device.type == "cuda"):
            stream = torch.cuda.current_stream(self.device)
            memory.record_stream(stream)
            if is_side:
                self._side_streams.add(stream)

    def _wait_for_other_streams(self) -> None:
        """Queue, on the current stream, that what follows comes after the reads on others."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self.device)
            for stream in {self._stream, *self._side_streams} - {current}:
                current.wait_stream(stream)
        self._side_streams = set()


_NO_COUNTS = torch.zeros(0, exponents.BINS, dtype=torch.int64)


class DeviceReader:
    """Reads tensors on accelerators: one ring a device, made when the device first shows."""

    def __init__(
        self, row: StepRow, make_event: Callable[[torch.device], CopyEvent | None] | None = None, *,
        reads_graphs: bool = False,
    ) -> None:  # fmt: skip
        self._row, self._make_event, self._reads_graphs = row, make_event or new_event, reads_graphs
        self._rings: dict[torch.device, DeviceRing] = {}
        self._slot = 0
        self.times_step: int | None = None
        """The open step's number when the reads of CUDA devices are to be timed in it. `end_step` sets it to None."""
        self.counts_exponents = False
        """Whether each read comes with a histogram."""

    def read(self, number: int, tensor: Tensor) -> None:
        """Queue the measurement of a floating tensor, as an observation of `number`."""
        numel = tensor.numel()
        if numel:
            ring = self._ring(tensor.device)
            if self.times_step is None:
                ring.merge(number, tensor)
            else:
                self._time(ring, functools.partial(ring.merge, number, tensor))
            if self.counts_exponents:
                ring.count_exponents(number, tensor)
        self._count(number, numel)

    def read_many(self, pairs: Sequence[tuple[int, Tensor]]) -> None:
        """The same for many (number, tensor): few launches, where the device has kernels for it."""
        by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
        for number, tensor in pairs:
            if tensor.numel():
                by_device.setdefault(tensor.device, []).append((number, tensor))
        for device, members in by_device.items():
            ring = self._ring(device)
            self._time(ring, functools.partial(ring.merge_many, members))
            if self.counts_exponents:
                for number, tensor in members:
                    ring.count_exponents(number, tensor)
        for number, tensor in pairs:
            self._count(number, tensor.numel())

    def capture(self, number: int, tensor: Tensor) -> bool:
        """Put the read of a tensor into the CUDA graph that is being captured, to be made at each replay.

        False when that is not possible: where nothing like it was read before, memory and kernels are not there yet.
        """
        ring = self._rings.get(tensor.device)
        return tensor.numel() > 0 and ring is not None and ring.capture(number, tensor)

    @property
    def is_full(self) -> bool:
        """Whether the histograms and sums that wait are as many as a batch may have."""
        return sum(ring.sparse_bytes for ring in self._rings.values()) > limits.BUFFER_BYTES

    def read_checksums(self, pairs: Sequence[tuple[int, Tensor]], weight: int | None = None) -> None:
        """Queue the checksums of (number, tensor), none of which is empty. `weight`: see `StepRow.set_checksum`."""
        by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
        for number, tensor in pairs:
            by_device.setdefault(tensor.device, []).append((number, tensor))
        for device, members in by_device.items():
            ring = self._ring(device)
            if ring.dtype == torch.float64:  # a device that has it not has no ranks either
                self._time(ring, functools.partial(ring.put_checksums, members, weight))

    def put_columns(self, places: Sequence[tuple[int, tuple[str, ...]]], values: Tensor) -> None:
        """Keep (n,) values of one device for the columns of a number each in the open step."""
        self._ring(values.device).put_columns(places, values)

    def put_sums(self, number: int, part: slice, values: Tensor) -> None:
        """Keep values of one device for a `part` of `sparse.ALL`, of a number in the open step."""
        self._ring(values.device).put_sums(number, part, values)

    def take_device_costs(self) -> dict[int, DeviceCost]:
        """What reads took the devices, by step: of the steps that were timed and are done, the most of any device.

        Never waits.
        """
        costs: dict[int, DeviceCost] = {}
        for ring in tuple(self._rings.values()):
            for step, cost in ring.time.take().items():
                costs[step] = max(cost, costs.get(step, cost))
        return costs

    def why_not_fused(self) -> dict[str, str]:
        """For each device that was read, why not by the fused kernels; an empty text where they do."""
        return {str(device): ring.fused.why_not for device, ring in tuple(self._rings.items())}

    def put_scalar(self, name: str, step: int, value: Tensor) -> bool:
        """Keep a one-element tensor for a series; False when there is no room."""
        return self._ring(value.device).put_scalar(Scalar(name, step), value)

    def end_step(self) -> None:
        """The open step is closed."""
        self._slot += 1
        for ring in self._rings.values():
            ring.end_step(self._slot)
            if self.times_step is not None:
                ring.time.end_step(self.times_step)
        self.times_step = None

    def take(self, tensors: int) -> tuple[PendingCopy, ...]:
        """Begin the copies of all closed steps, of the first `tensors` of the catalogue."""
        self._slot = 0
        return tuple(ring.take(tensors) for ring in self._rings.values())

    def _time(self, ring: DeviceRing, read: Callable[[], None]) -> None:
        if self.times_step is None or ring.device.type != "cuda":
            read()
        else:
            with _current(ring.device):
                ring.time.time(read)

    def _count(self, number: int, numel: int) -> None:
        self._row.call_count[number] += 1.0
        self._row.numel[number] += numel
        self._row.full_numel[number] += numel

    def _ring(self, device: torch.device) -> DeviceRing:
        ring = self._rings.get(device)
        if ring is None:
            graphs = self._reads_graphs and device.type in ("cuda", "cpu")
            ring = DeviceRing(device, self._slot, self._make_event, reads_graphs=graphs)
            self._rings[device] = ring
        return ring


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Makes `device` the current one, on whose stream an event is recorded."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def new_event(device: torch.device) -> Any:
    """An event of the device's kind; None on the host, where everything is complete at once."""
    return None if device.type == "cpu" else getattr(torch, device.type).Event()
