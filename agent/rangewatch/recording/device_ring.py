"""Rows of the open and the closed steps on one accelerator, and the asynchronous copy that brings them to the host.

The training thread queues operations here and never waits; the sender's thread reads a copy only when its event says
that it is complete (a non-blocking copy read before that is garbage).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rangewatch.core import limits
from rangewatch.recording.step_buffer import Block, StepRow
from rangewatch.statistics import ON_DEVICE, UFUNCS, checksum
from rangewatch.statistics.fused import DeviceTime, FusedReads
from rangewatch.statistics.reduce import fill_identities, measure, merge
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


class PendingCopy:
    """A copy on its way: rows (steps, tensors, `ON_DEVICE`), scalars with what they are, and values of columns.

    `places`: of each value of `of_columns` the step of the block, the number of the tensor, and the columns.
    """

    def __init__(
        self, rows: Tensor, values: Tensor, scalars: list[Scalar], of_columns: Tensor, places: list[ColumnPlace],
        event: CopyEvent | None,
    ) -> None:  # fmt: skip
        self._rows, self._values, self._scalars, self._event = rows, values, scalars, event
        self._of_columns, self._places = of_columns, places
        self.nbytes = rows.numel() * rows.element_size()
        self.is_empty = not rows.numel() and not scalars

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
            for name in names:
                block.rows[columns[name], step, number] = value


class DeviceRing:
    """Preallocated rows on one device. `slot` is the open step's, the number of closed steps before it."""

    def __init__(self, device: torch.device, slot: int, make_event: Callable[[torch.device], CopyEvent | None]) -> None:
        # MPS has no float64: counts above 2^24 elements are then rounded.
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        self.device, self._make_event = device, make_event
        self.slot = slot
        self._rows = self._empty_rows(0, 0)
        self._scalar_values = torch.zeros(0, dtype=self.dtype, device=device)
        self._scalars: list[Scalar] = []
        self._of_columns: list[Tensor] = []
        self._places: list[ColumnPlace] = []
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

    def _merge(self, number: int, tensor: Tensor) -> None:
        with torch.no_grad():
            merge(self._rows[self.slot, number], measure(tensor, self.dtype))

    def _address(self, number: int) -> int:
        self._make_room(number)
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
            self.put_columns([(number, ("axis_balance",)) for number, _ in pairs], checksum.balanced(sums, weight))

    def put_columns(self, places: Sequence[tuple[int, tuple[str, ...]]], values: Tensor) -> None:
        """Keep values, (n,) of this device, for the columns of a number each in the open step, until `take`."""
        self._of_columns.append(values.to(self.dtype))
        self._places += [ColumnPlace(self.slot, *place) for place in places]

    def take(self, tensors: int) -> PendingCopy:
        """Begin the copy of all closed steps, and empty the ring; `slot` is 0 again."""
        if self.slot > self._rows.shape[0]:
            self._grow(self._rows.shape[1])  # steps in which this device showed no tensor
        with _current(self.device):
            rows = self._to_host(self._rows[: self.slot, :tensors])
            values = self._to_host(self._scalar_values[: len(self._scalars)])
            of_columns = self._to_host(torch.cat(self._of_columns)) if self._of_columns else torch.zeros(0)
            event = self._make_event(self.device)
            if event is not None:
                event.record()
        fill_identities(self._rows[: self.slot])  # queued behind the copy, on the same stream
        copy = PendingCopy(rows, values, self._scalars, of_columns, self._places, event)
        self.slot, self._scalars, self._of_columns, self._places = 0, [], [], []
        return copy

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
        rows[: self._rows.shape[0], : self._rows.shape[1]] = self._rows
        self._rows = rows

    def _empty_rows(self, steps: int, tensors: int) -> Tensor:
        rows = torch.empty(steps, tensors, len(ON_DEVICE), dtype=self.dtype, device=self.device)
        fill_identities(rows)
        self._rows_address = rows.data_ptr()
        return rows


class DeviceReader:
    """Reads tensors on accelerators: one ring a device, made when the device first shows."""

    def __init__(self, row: StepRow, make_event: Callable[[torch.device], CopyEvent | None] | None = None) -> None:
        self._row, self._make_event = row, make_event or new_event
        self._rings: dict[torch.device, DeviceRing] = {}
        self._slot = 0
        self.times_step: int | None = None
        """The open step's number when the reads of CUDA devices are to be timed in it. `end_step` sets it to None."""

    def read(self, number: int, tensor: Tensor) -> None:
        """Queue the measurement of a floating tensor, as an observation of `number`."""
        numel = tensor.numel()
        if numel:
            ring = self._ring(tensor.device)
            if self.times_step is None:
                ring.merge(number, tensor)
            else:
                self._time(ring, functools.partial(ring.merge, number, tensor))
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
        for number, tensor in pairs:
            self._count(number, tensor.numel())

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

    def take_device_time_s(self) -> dict[int, float]:
        """Seconds of the devices' time that reads took, by step: steps that were timed and are done. Never waits."""
        seconds: dict[int, float] = {}
        for ring in tuple(self._rings.values()):
            for step, device_s in ring.time.take().items():
                seconds[step] = max(device_s, seconds.get(step, 0.0))
        return seconds

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
            ring.slot = self._slot
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
            ring = self._rings[device] = DeviceRing(device, self._slot, self._make_event)
        return ring


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Makes `device` the current one, on whose stream an event is recorded."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def new_event(device: torch.device) -> Any:
    """An event of the device's kind; None on the host, where everything is complete at once."""
    return None if device.type == "cpu" else getattr(torch, device.type).Event()
