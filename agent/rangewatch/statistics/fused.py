"""Launches the fused kernels: what each dtype and each layout is to them, and what is done when they cannot be had.

Addresses are given as numbers, so that a launch keeps no tensor and one compilation serves every shape. A device's
work is queued on the current stream, as torch's own would be.

`DeviceTime` is what the reads cost a device, by its own clock: events before and after each, which are asked when
they are done.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rangewatch.core import limits

THREADS = 256
_UNROLL = 4
_OPTIONS = {"num_warps": THREADS // 32, "maxnreg": 80}  # of 65,536 registers: three programs on each multiprocessor
_PROGRAMS_EACH = 12
"""Programs a multiprocessor at most: whole rounds whether it holds 2, 3, 4 or 6 of them, and few enough atomics."""
_PART_TILES = 8
"""Tiles of one program of `read_many`: 64 Ki elements of two bytes, 4 microseconds of one multiprocessor (H200)."""
_LEAST_ADDRESS = 1 << 32
"""Below are only tensors without memory (freed, meta), whose address is their offset."""
_INT32_ELEMENTS = 1 << 31

Place = tuple[int, Tensor]
"""Address of a row, and a tensor to be merged into it."""


@dataclass(frozen=True, eq=False)
class Format:
    """How the kernels read a dtype: (pattern & mask) << shift are the bits of a float32 (`is_wide`: a float64) that
    is the magnitude divided by `scale`. The bounds are such bits, of the magnitude itself."""

    itemsize: int
    vector: int
    """Elements that a thread loads at once: 16 bytes, but 8 elements at most."""
    lanes: int
    """Elements that a program loads at once."""
    unroll: int
    """Such loads that a program has under way."""
    mask: int
    shift: int
    scale: float
    normal: int
    nonfinite: int
    nan: int
    least: int
    most: int
    """The bits from which and below which the sum of squares needs no second look; see `fused_kernels._add_tile`."""
    sum_scale: float
    is_wide: bool = False


def _narrow(itemsize: int, mantissa_bits: int, bias: int, nonfinite: int = 0, nan: int = 0) -> Format:
    shift, top_exponent = 23 - mantissa_bits, 2 ** (8 * itemsize - 1 - mantissa_bits) - 1
    nonfinite = nonfinite or (top_exponent - bias + 127) << 23
    mask, scale, normal = (1 << 8 * itemsize - 1) - 1, 2.0 ** (127 - bias), (1 - bias + 127) << 23
    least, most, vector = (127 - 72) << 23, min(nonfinite, (127 + 37) << 23), min(8, 16 // itemsize)
    loads = itemsize, vector, vector * THREADS, _UNROLL
    return Format(*loads, mask, shift, scale, normal, nonfinite, nan or nonfinite + 1, least, most, 2.0**24)


def _wide() -> Format:
    loads, infinity = (8, 2, 2 * THREADS, _UNROLL), 0x7FF << 52
    return Format(*loads, (1 << 63) - 1, 0, 1.0, 1 << 52, infinity, infinity + 1, 0, infinity, 1.0, is_wide=True)


_480 = 0x43F00000  # as float32: what float8_e4m3fn's only pattern without a number would be
FORMATS = {
    torch.float64: _wide(),
    torch.float32: _narrow(4, 23, 127),
    torch.bfloat16: _narrow(2, 7, 127),
    torch.float16: _narrow(2, 10, 15),
    torch.float8_e5m2: _narrow(1, 2, 15),
    torch.float8_e4m3fn: _narrow(1, 3, 7, nonfinite=_480, nan=_480),
}
"""Others (the `fnuz` forms of float8, whose NaN is where -0 would be) are left to torch's operations."""


class Layout(NamedTuple):
    """The distinct elements of a tensor: `numel` of them, each there `repeats` times; strides in elements."""

    numel: int
    repeats: int
    inner: int = 0
    outer_stride: int = 0
    inner_stride: int = 0
    is_dense: bool = True


def layout_of(tensor: Tensor) -> Layout | None:
    """How a tensor that is not empty lies in memory; None when that takes more than two strides."""
    if tensor.is_contiguous():
        return Layout(tensor.numel(), 1)
    repeats, runs = 1, [(1, 1)]  # (elements, stride), those next to each other first
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride == 0:
            repeats *= size
        elif size > 1 and stride == runs[-1][0] * runs[-1][1]:
            runs[-1] = (runs[-1][0] * size, runs[-1][1])
        elif size > 1:
            runs.append((size, stride))
    if len(runs) == 1:
        return Layout(runs[0][0], repeats)
    runs = runs[1:] if runs[0][0] == 1 else runs
    if len(runs) > 2:
        return None
    (inner, inner_stride), (outer, outer_stride) = runs[0], runs[1] if len(runs) == 2 else (1, 0)
    numel = inner * outer
    return Layout(numel, repeats, inner, outer_stride, inner_stride, False) if numel < _INT32_ELEMENTS else None


class FusedReads:
    """Merges tensors of one device into rows of `reduce.COLUMNS` in float64, by address."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._is_thin = True
        self.why_not = _why_not(device)
        """Why tensors are not read here but by torch's operations; empty while they are read here."""
        self.why_no_exponents = ""
        """The same of the histograms alone."""
        self._kernels: Any = None
        self._programs = 1
        self._stream: Callable[[], int] = lambda: 0
        if not self.why_not:
            self.why_not = self._open()

    def read(self, row: int, tensor: Tensor) -> bool:
        """Queue the merge of a non-empty tensor into the row at this address; False when it is left to the caller."""
        return self._read_parts_of(tensor, "measure", row)

    def count_exponents(self, row: int, tensor: Tensor) -> bool:
        """The same of its histogram, into a row of (exponents.BINS,) int64."""
        return not self.why_no_exponents and self._read_parts_of(tensor, "count_exponents", row)

    def capture(self, row: int, tensor: Tensor) -> bool:
        """As `read`, while a CUDA graph is captured, into a row with two more columns: calls and elements.

        False, and nothing is queued, also where a kernel would have to be compiled or loaded: a capture does not allow
        that.
        """
        form, layout = self._form(tensor), layout_of(tensor)
        if form is None or layout is None:
            return False
        return self._launch(*_call("measure", row, tensor, layout, form, self._programs, calls=1), compiles=False)

    def _form(self, tensor: Tensor) -> Format | None:
        is_there = not self.why_not and tensor.data_ptr() >= _LEAST_ADDRESS
        return FORMATS.get(tensor.dtype) if is_there else None

    def _read_parts_of(self, tensor: Tensor, kernel: str, row: int) -> bool:
        form, layout = self._form(tensor), layout_of(tensor)
        if form is None:
            return False
        if layout is not None:
            return self._launch(*_call(kernel, row, tensor, layout, form, self._programs))
        pieces = ((piece, Layout(piece.numel(), 1)) for piece in _pieces(tensor.detach()))
        return all(self._launch(*_call(kernel, row, *piece, form, self._programs)) for piece in pieces)

    def read_many(self, places: Sequence[Place]) -> list[int]:
        """The same for many tensors, in one launch a dtype; returns which of them are left to the caller."""
        if self.why_not:
            return list(range(len(places)))
        batches: dict[Format, list[tuple[int, int, int, int, int]]] = {}
        left = []
        for index, (row, tensor) in enumerate(places):
            form, layout, address = FORMATS.get(tensor.dtype), layout_of(tensor), tensor.data_ptr()
            if form and layout and layout.is_dense and address >= _LEAST_ADDRESS and address % 16 == 0:
                batches.setdefault(form, []).append((address, layout.numel, layout.repeats, row, index))
            elif not self.read(row, tensor):
                left.append(index)
        for form, batch in batches.items():
            whole = np.array(batch, np.int64)
            if not self._read_parts(whole[:, :4], form):
                left.extend(whole[:, 4].tolist())
        return left

    def _read_parts(self, batch: NDArray[np.int64], form: Format) -> bool:
        parts = table_of(batch, _PART_TILES * form.lanes * form.unroll, form.itemsize)
        table = self._to_device(parts)
        return self._launch("measure_parts", len(parts), (table.data_ptr(),), (True, form))

    def _to_device(self, values: NDArray[np.int64]) -> Tensor:
        # Pinned memory is torch's own to recycle: it gives a block out again when the copies from it are done. Kernel
        # arguments would hold some hundred addresses, and each number of them would be a kernel of its own.
        if self._device.type == "cpu":
            return torch.from_numpy(values)
        host = torch.empty(values.shape, dtype=torch.int64, pin_memory=True)
        host.numpy()[:] = values
        return host.to(self._device, non_blocking=True)

    def _launch(
        self, name: str, programs: int, numbers: tuple[int, ...], constants: tuple[Any, ...], *, compiles: bool = True
    ) -> bool:
        """Queue a kernel; there is a compiled one for each `constants`. False when there cannot be one."""
        if self._device.type == "cuda" and torch.cuda.current_device() != self._device.index:
            with torch.cuda.device(self._device):
                return self._launch(name, programs, numbers, constants, compiles=compiles)
        key, grid, arguments = (name, *constants), (programs, 1, 1), (*numbers, *constants)
        if key not in self._compiled:
            return compiles and self._compile(key, grid, arguments)
        compiled = self._compiled[key]
        if compiled is not None and self._is_thin:
            try:
                # As `kernel[grid]` does when it has found what it compiled, which takes it 10 us (Triton 3.7).
                compiled.run(
                    *grid, self._stream(), compiled.function, compiled.packed_metadata, None, None, None, *arguments
                )
            except TypeError:  # a release of Triton whose compiled kernels take other arguments
                self._is_thin = False
            else:
                return True
        getattr(self._kernels, name)[grid](*arguments, **_OPTIONS)
        return True

    def _compile(self, key: tuple[Any, ...], grid: tuple[int, ...], arguments: tuple[Any, ...]) -> bool:
        kernel = getattr(self._kernels, key[0])
        try:
            self._compiled[key] = kernel[grid](*arguments, **_OPTIONS)  # launches too; None from the interpreter
        except Exception as error:  # noqa: BLE001 - whatever it is, torch's operations are there
            if key[0] == "count_exponents":
                self.why_no_exponents = _described(error)
            else:
                self.why_not = _described(error)
            return False
        return True

    def _open(self) -> str:
        """Imports Triton; why that is in vain, if it is."""
        try:
            from rangewatch.statistics import fused_kernels  # noqa: PLC0415 - an optional library

            is_interpreted = type(fused_kernels.measure).__name__ == "InterpretedFunction"
            if self._device.type == "cuda" and not is_interpreted:
                self._stream = functools.partial(fused_kernels.current_stream_of(), self._device.index)
        except Exception as error:  # noqa: BLE001 - not installed, no C compiler, not for this machine
            return _described(error)
        self._kernels = fused_kernels
        if self._device.type == "cpu":
            self._programs = 4
            return "" if is_interpreted else "Triton's interpreter is off"
        multiprocessors = torch.cuda.get_device_properties(self._device).multi_processor_count
        self._programs = _PROGRAMS_EACH * multiprocessors
        return "Triton's interpreter is on" if is_interpreted else ""  # it would follow a device's addresses here


def _call(
    kernel: str, row: int, tensor: Tensor, layout: Layout, form: Format, most_programs: int, *, calls: int = 0
) -> tuple[str, int, tuple[int, ...], tuple[Any, ...]]:
    """What `_launch` takes."""
    address = tensor.data_ptr()
    numel, repeats, inner, outer_stride, inner_stride, is_dense = layout
    programs = max(1, min(numel // (form.lanes * form.unroll), most_programs))
    counted = (calls,) if kernel == "measure" else ()
    numbers = address, numel, repeats, row, *counted, inner, outer_stride, inner_stride
    return kernel, programs, numbers, (is_dense, address % 16 == 0, form)


def table_of(batch: NDArray[np.int64], part_numel: int, itemsize: int) -> NDArray[np.int64]:
    """Cut dense tensors into parts of at most `part_numel` elements: one row for each, as `batch` has one for each
    tensor: (address, numel, repeats, row)."""
    part_counts = -(-batch[:, 1] // part_numel)
    parts = np.repeat(batch, part_counts, axis=0)
    before = np.arange(len(parts)) - np.repeat(np.cumsum(part_counts) - part_counts, part_counts)
    parts[:, 0] += before * part_numel * itemsize
    parts[:, 1] = np.minimum(part_numel, parts[:, 1] - before * part_numel)
    return parts


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Contiguous copies of a tensor's parts, bounded in size."""
    if tensor.numel() <= limits.DEVICE_BLOCK_ELEMENTS:
        yield tensor.contiguous()
        return
    longest = max(range(tensor.dim()), key=tensor.size)
    for part in torch.split(tensor, (tensor.size(longest) + 1) // 2, longest):
        yield from _pieces(part)


def _why_not(device: torch.device) -> str:
    if device.type == "cpu":
        return "" if os.environ.get("TRITON_INTERPRET") == "1" else "on a CPU"
    if device.type != "cuda":
        return f"no kernels for {device.type}"
    return "no kernels for ROCm" if torch.version.hip else ""


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[: limits.MESSAGE_CHARACTERS]


TIMED_READS = 1024
"""Reads timed in one step at most: two events each, some 3 microseconds of the host. More are taken to cost alike."""

TIMED_STEPS = 4
"""Steps whose times wait to be asked for; the oldest is forgotten when there are more."""

Pair = tuple[Any, Any]


class DeviceCost(NamedTuple):
    """What the reads of a step took a device."""

    seconds: float
    was_behind: bool
    """Whether the device had not come to the last of them when the step ended: the training waited for the device, and
    the training thread, in a full queue, for room in it."""


class _Step(NamedTuple):
    step: int
    pairs: list[Pair]
    reads: int
    was_behind: bool


class DeviceTime:
    """One device's. The training thread calls all but `take`, any thread that; nothing here waits.

    Between two events lies also what the device waits for the host, when it has nothing else to do.
    """

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make_event = make_event
        self._free: deque[Pair] = deque()
        self._pairs: list[Pair] = []
        self._reads = 0
        self._steps: deque[_Step] = deque()

    def time(self, read: Callable[[], None]) -> None:
        """Call `read`, which queues work on the current stream, and time that."""
        self._reads += 1
        if len(self._pairs) >= TIMED_READS:
            read()
            return
        began, ended = self._free.pop() if self._free else (self._make_event(), self._make_event())
        began.record()
        read()
        ended.record()
        self._pairs.append((began, ended))

    def end_step(self, step: int) -> None:
        """What has been timed since the last call was of `step`."""
        if self._pairs:
            self._steps.append(_Step(step, self._pairs, self._reads, not self._pairs[-1][1].query()))
        self._pairs, self._reads = [], 0
        if len(self._steps) > TIMED_STEPS:
            self._steps.popleft()

    def take(self) -> dict[int, DeviceCost]:
        """By step, of the steps whose work is done and that were not taken before."""
        costs = {}
        while self._steps and all(ended.query() for _, ended in self._steps[0].pairs):
            step, pairs, reads, was_behind = self._steps.popleft()
            total_ms = sum(began.elapsed_time(ended) for began, ended in pairs)
            costs[step] = DeviceCost(total_ms / 1e3 * reads / len(pairs), was_behind)
            self._free.extend(pairs)
        return costs
