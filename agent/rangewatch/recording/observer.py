"""What the hooks talk to: gives tensors their numbers and has each read where it is.

`HostReader` reads tensors in host memory, the hot path on a CPU; `device_ring` those on accelerators, of which
`GradientBatch` holds the parameters' gradients until the backward ends, to read them in few launches. `Observer` also
keeps account of what was not read, and why: such a tensor is "not observed", never "clean".
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor

from rangewatch.core import limits
from rangewatch.core.guard import Guard, logger
from rangewatch.recording.eager import hidden_from_modes
from rangewatch.recording.level import Cost, TimedHook
from rangewatch.recording.rows.device_ring import DeviceReader
from rangewatch.recording.rows.mirror import TENSOR, own_cells
from rangewatch.recording.rows.step_buffer import StepBuffer, StepRow
from rangewatch.recording.tensor_names import CallOrder, TensorNames
from rangewatch.statistics import checksum, reduce
from rangewatch.statistics.dtype_limits import LIMITS
from rangewatch.statistics.reduce import FullSet
from rangewatch.statistics.sparse import EXPONENTS
from rangewatch.wire.records import Statistic, TensorEntry

_graph_task_id = torch._C._current_graph_task_id
_INFINITY = math.inf
_FINITE = (0, 0)
_aminmax, _is_grad_enabled, _set_grad_enabled = torch.aminmax, torch.is_grad_enabled, torch._C._set_grad_enabled
_engine: Any = torch.autograd.Variable._execution_engine


class Hook(Protocol):
    """A hook on a module or a parameter, which may never be called."""

    def has_run(self) -> bool:
        """Whether it has seen what is recorded."""

    def has_run_in_evaluation(self) -> bool:
        """Whether it has seen what is not recorded, being evaluation."""


class ForwardListener(Protocol):
    """Wants to know where a forward of the model begins."""

    def forward_begins(self) -> None:
        """Called inside the guard, by the thread that calls the model."""


class InputListener(Protocol):
    """Wants to know what a forward of the model is given."""

    def inputs_given(self, values: Any) -> None:
        """Called inside the guard where a forward of training begins: `values` are its arguments, in a tuple."""


class StepReader:
    """Reads something of its own in each step. Called by the training thread, inside the guard."""

    def begin_step(self, step: int) -> None:
        """`step` is open."""

    def end_step(self) -> None:
        """The open step is about to be closed."""


class GradientBatch(StepReader):
    """Holds gradients until their backward ends, some at a time. Their reads are queued as if they were made at once.

    Only such as stay what they are until then: not where DDP reduces them in place as soon as they are there, and not
    where another hook on the parameter may use them up.
    """

    def __init__(self, observer: Observer, guard: Guard, cost: Cost) -> None:
        self._observer = observer
        self._at_end = TimedHook(guard, "grad at the end of the backward", self.read, cost)
        self._waiting: list[tuple[int, Tensor]] = []
        self._task = -1

    def add(self, number: int, parameter: Tensor, gradient: Tensor) -> bool:
        """Take a gradient; False when it must be read now."""
        task = _graph_task_id()
        if task == -1 or not _stays(parameter, gradient):
            return False
        if task != self._task:  # a backward inside another has a task, and an end, of its own
            self.read()
            _engine.queue_callback(self._at_end)
            self._task = task
        self._waiting.append((number, gradient))
        if len(self._waiting) >= limits.GRADIENTS_AT_ONCE:
            self.read()
        return True

    def end_step(self) -> None:
        """Read those whose backward has raised."""
        self.read()

    def read(self) -> None:
        """Read those that wait. Called when their backward ends; a backward that raises calls nothing."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._observer.read_many(waiting)


def _stays(parameter: Tensor, gradient: Tensor) -> bool:
    hooks: Any = parameter._post_accumulate_grad_hooks
    if hooks is None or len(hooks) > 1:
        return False
    # FSDP2's gradients, DTensors, are reduced before they are here.
    return hasattr(gradient, "to_local") or not _is_distributed()


def _is_distributed() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


class NonfiniteListener(Protocol):
    """Looks at what surrounds a NaN or Inf while it is still there."""

    def nonfinite_read(self, number: int, nan_count: int, tensor: Tensor) -> None:
        """The tensor of this number, in host memory, holds `nan_count` NaN, or Inf alone: called as it is read, in the
        midst of the call that it comes from."""


class DueReader(Protocol):
    """Reads some tensors in another way as well."""

    due: Collection[int]
    """Their numbers."""

    def read(self, number: int, tensor: Tensor, amax: float) -> None:
        """The tensor of this number, of `due`, was read: `amax` is its largest finite magnitude."""


class SketchListener(Protocol):
    """Reads some tensors as they are given: DTensors, and those on accelerators."""

    is_due: bool
    """Whether it does so in the open step."""

    def read_as_given(self, number: int, tensor: Tensor, local: Tensor) -> None:
        """The tensor of this number was read, whose part on this rank is `local`."""


class HostReader:
    """Measures each tensor once a step, however many modules show it, and merges it into `row`.

    A parent often returns its child's output unchanged. What was read is therefore kept until the step closes, by the
    tensor object (through a weak reference: nothing is kept alive) and its version (an in-place change raises it).
    `others` reads tensors that are not plain ones in host memory. `order` and `cells` (see `mirror`) get each number
    before it is read. `histograms`: the full set comes with the exponents.
    """

    def __init__(
        self,
        row: StepRow,
        order: CallOrder,
        others: Callable[[int, Tensor], None],
        nonfinite: NonfiniteListener | None = None,
        cells: Any = None,
        *,
        reads_all: bool = True,
        histograms: bool = False,
    ) -> None:
        self.is_full = True
        self.saw_nonfinite = False
        self.due_readers: list[DueReader] = []
        self._began_ns = time.perf_counter_ns()
        self._passed, self._others, self._nonfinite, self._reads_all = order.passed, others, nonfinite, reads_all
        self._histograms = histograms
        self._seen: dict[int, tuple[Any, ...]] = {}
        self.cells: Any = own_cells() if cells is None else cells
        """Say where this process is: the tensor last read."""
        self._row = row
        self._call_count, self._numel, self._amax = row.call_count, row.numel, row.amax

    def begin_step(self, *, is_full: bool) -> None:
        """Forget the tensors of the last step; `is_full`: take the full set in this one."""
        self._seen.clear()
        self.is_full, self.saw_nonfinite = is_full, False
        self._began_ns = time.perf_counter_ns()

    def read(self, number: int, tensor: Tensor) -> None:
        """Measure `tensor`, any strided floating CPU tensor, and merge it as an observation of `number`.

        Raises what torch raises for tensors that cannot be reduced (sparse, quantized, wrapped by functorch).
        """
        self._passed(number)
        self.cells[TENSOR] = number
        known = self._seen.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1] != tensor._version:
            if type(tensor) is not Tensor or not tensor.is_cpu or not self._reads_all:
                self._others(number, tensor)
                return
            was_enabled = _is_grad_enabled()
            _set_grad_enabled(False)
            try:
                # What `reduce.amax` does, written out: this runs for every tensor of every step.
                low, high = _aminmax(tensor if tensor.is_contiguous() else reduce.dense(reduce.distinct(tensor)))
                amax, least = high.item(), -low.item()
                if least > amax:
                    amax = least
            except RuntimeError:
                amax = reduce.amax_of_blocks(tensor)
            finally:
                _set_grad_enabled(was_enabled)
            numel, nonfinite = tensor.numel(), _FINITE
            if not amax < _INFINITY:
                self.saw_nonfinite = True
                amax, nan_count, inf_count = reduce.count_nonfinite(tensor)
                nonfinite = nan_count, inf_count
            full = reduce.full_set(tensor, histogram=self._histograms) if self.is_full else None
            if len(self._seen) > limits.SEEN_TENSORS:
                self._seen.clear()
            try:
                self._seen[id(tensor)] = ref(tensor), tensor._version, numel, amax, nonfinite, full
            except RuntimeError:  # an inference tensor has no version to know it again by
                self._seen.pop(id(tensor), None)
        else:
            _, _, numel, amax, nonfinite, full = known
        self._call_count[number] += 1.0
        self._numel[number] += numel
        if amax > self._amax[number]:
            self._amax[number] = amax
        if nonfinite is not _FINITE:
            self._count_nonfinite(number, tensor, *nonfinite)
        if full is not None:
            self._merge_full(number, numel, full)
        for reader in self.due_readers:
            if number in reader.due:
                reader.read(number, tensor, amax)

    def _count_nonfinite(self, number: int, tensor: Tensor, nan_count: int, inf_count: int) -> None:
        row = self._row
        row.nan_count[number] += nan_count
        row.inf_count[number] += inf_count
        # Which was first: a module that is called twice may be bad in its second call only, call order does not tell.
        row.nonfinite_ns[number] = min(row.nonfinite_ns[number], time.perf_counter_ns() - self._began_ns)
        if self._nonfinite is not None:
            self._nonfinite.nonfinite_read(number, nan_count, tensor)

    def _merge_full(self, number: int, numel: int, full: FullSet) -> None:
        row = self._row
        row.full_numel[number] += numel
        for name, value in full.values.items():
            column = row.columns[name]
            column[number] = reduce.MERGE[name](column[number], value)
        if full.exponents is not None:
            row.sparse.add(number, EXPONENTS, full.exponents)


NEVER_CALLED = "its hook never ran: not called, only its weights used, or compiled"
COMPILED_LOW = "compiled in bfloat16 or float16, where outputs are not read unasked, or not called"
ONLY_EVALUATED = "ran in evaluation only"
CAPTURED = "captured in a CUDA graph, whose replays call no hook; attach(cuda_graphs=True) reads there"
NO_ROW = "captured in a CUDA graph before anything like it was read outside of one"
FREED, INTEGER, BOOL = "freed before it was read", "integer tensor", "bool tensor"
NEVER_REACHED = "no gradient has reached it"
_SILENCE = frozenset({NEVER_CALLED, COMPILED_LOW, ONLY_EVALUATED, NEVER_REACHED})


class Observer:
    """One for each attached model. `is_active` False makes every hook return at once."""

    def __init__(
        self,
        names: TensorNames,
        buffer: StepBuffer,
        cost: Cost,
        guard: Guard,
        *,
        forces_device: bool = False,
        histograms: bool = False,
        reads_graphs: bool = False,
        nonfinite: NonfiniteListener | None = None,
    ) -> None:
        self.is_active = True
        self.is_evaluating = False
        """A forward is under way that no backward follows, see `steps.evaluation.passes`."""
        self.cost = cost
        self._order = CallOrder()
        self.host = HostReader(
            buffer.row, self._order, self.read_elsewhere, nonfinite, buffer.mirror.cells, reads_all=not forces_device,
            histograms=histograms,
        )  # fmt: skip
        self.read = self.host.read
        """Merge a tensor into the open step as an observation of a number. Raises when it cannot be reduced."""
        self.device = DeviceReader(buffer.row, reads_graphs=reads_graphs)
        self.device.counts_exponents = histograms  # the first step has the full set
        self.gradients = GradientBatch(self, guard, cost)
        self.not_observed: dict[str, str] = {}
        self.skipped = {"eval_forward": 0, "recompute": 0, "cuda_graph": 0}
        self.uncalled: dict[str, Hook] = {}
        """Modules whose hook had not run when last looked at."""
        self.unreached: dict[str, Hook] = {}
        """The same for parameters and their gradients."""
        self.graphs: dict[str, bool] = {}
        """Modules whose first output in training was seen, and whether a backward can go through it."""
        self.sketches: SketchListener | None = None
        self.step_readers: list[StepReader] = [self.gradients]
        """Called where each step begins and ends, in this order."""
        self.other_values: dict[str, dict[str, str]] = {}
        """What modules take and give that has no range: module -> "input[1]" -> "None", "not a tensor" or the like."""
        self._names, self._buffer, self._forces_device = names, buffer, forces_device
        self._histograms, self._reads_graphs = histograms, reads_graphs
        self._reached = self._has_warned = False

    def begin_step(self, *, is_full: bool) -> None:
        """The last step is closed, the next one open."""
        self._order.begin_step()
        self.device.end_step()
        self.device.counts_exponents = self._histograms and is_full
        self.host.begin_step(is_full=is_full)

    def read_many(self, pairs: Iterable[tuple[int, Tensor]]) -> None:
        """The same for several tensors that are there at once: few launches on an accelerator."""
        there = []
        for number, tensor in pairs:
            local = local_part(tensor)
            if self.is_on_device(local) and not is_freed(local) and not is_being_captured(local):
                self._order.passed(number)
                there.append((number, local))
                if self.sketches is not None and self.sketches.is_due:
                    self.sketches.read_as_given(number, tensor, local)
            else:
                self.host.read(number, tensor)
        if there:
            self.device.read_many(there)

    def read_checksums(self, pairs: Iterable[tuple[int, Tensor]], weight: int | None = None) -> None:
        """Put the checksum of each tensor, which is plain and dense, into the open row of its number. `weight`: see
        `StepRow.set_checksum`."""
        there = []
        for number, tensor in pairs:
            if self.is_on_device(tensor):
                if not is_being_captured(tensor):  # in a CUDA graph it would be computed at each replay, for nobody
                    there.append((number, tensor))
            else:
                self._buffer.row.set_checksum(number, checksum.of_host(tensor), weight)
        if there:
            self.device.read_checksums(there, weight)

    def read_columns(self, statistics: Sequence[Statistic], values: Sequence[tuple[int, Tensor]]) -> None:
        """Put (number, values), one value of each of `statistics`, into the open rows; `can_read` says where."""
        names = [each.name for each in statistics]
        by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
        for number, each in values:
            if self.is_on_device(each):
                by_device.setdefault(each.device, []).append((number, each))
            else:
                self._buffer.row.set_columns(number, dict(zip(names, each.tolist(), strict=True)))
        for members in by_device.values():
            places = [(number, (name,)) for number, _ in members for name in names]
            self.device.put_columns(places, torch.cat([each for _, each in members]))

    def passed(self, number: int) -> None:
        """The tensor of this number is being read: those that are new come after it."""
        self._order.passed(number)

    def read_amax(self, numbers: Sequence[int], values: Tensor, numel: int) -> None:
        """Merge `values`, one for each of `numbers` (of more the first), as the `amax` of `numel` elements."""
        row = self._buffer.row
        on_device = self.is_on_device(values)
        for number in numbers:
            self._order.passed(number)
            row.call_count[number] += 1.0
            row.numel[number] += numel
        if on_device:
            self.device.put_columns([(number, ("amax",)) for number in numbers], values[: len(numbers)])
            return
        for number, value in zip(numbers, values.tolist(), strict=False):
            if value > row.amax[number]:
                row.amax[number] = value

    def add_sums(self, number: int, part: slice, values: Tensor) -> None:
        """Add the values of a `part` of `sparse.ALL`, on any device, to the open row of a number; `can_read` says
        whether they can be computed."""
        if self.is_on_device(values):
            self.device.put_sums(number, part, values)
        else:
            self._buffer.row.sparse.add(number, part, values.numpy())

    def can_read(self, tensor: Tensor) -> bool:
        """Whether the values of a plain tensor can be computed with in the open step."""
        return why_unobservable(tensor) is None and not is_being_captured(tensor)

    def is_on_device(self, value: Any) -> bool:
        """Whether reading `value` would make the host wait for a device."""
        return isinstance(value, Tensor) and (self._forces_device or not value.is_cpu)

    def read_elsewhere(self, number: int, tensor: Tensor) -> None:
        """Read what the host reader leaves alone: shards, subclasses, and tensors on an accelerator."""
        local = local_part(tensor)
        with hidden_from_modes([local]):
            self._read_local(number, tensor, local)

    def _read_local(self, number: int, tensor: Tensor, local: Tensor) -> None:
        if local.is_cpu and not self._forces_device:
            self.host.read(number, local.as_subclass(Tensor))
        elif is_freed(local):  # a kernel would read memory that is another's by now
            self.note_not_observed(self._names.entries[number].fqn, FREED)
        elif is_being_captured(local):
            if not (self._reads_graphs and self.device.capture(number, local)):
                self.skipped["cuda_graph"] += 1
                self.note_not_observed(self._names.entries[number].fqn, NO_ROW if self._reads_graphs else CAPTURED)
        else:
            self.device.read(number, local)
        if self.sketches is not None and self.sketches.is_due:
            self.sketches.read_as_given(number, tensor, local)

    def is_read(self, number: int) -> bool:
        """Whether the tensor of this number was read in the open step."""
        return self._buffer.row.call_count[number] > 0

    def number(self, tensor: Tensor, fqn: str, kind: str, index: int, module: str) -> int:
        """The number of the tensor with this name in `tensor`'s dtype, or -1 when it cannot be observed."""
        tensor = local_part(tensor)
        reason = why_unobservable(tensor)
        if reason in (INTEGER, BOOL) and kind in ("input", "output"):  # token ids, a mask: they have no range
            self.note_other_value(fqn, f"{kind}[{index}]", reason)
            return -1
        if reason:
            self.note_not_observed(fqn, f"{kind}: {reason}")
            return -1
        dtype = str(tensor.dtype).removeprefix("torch.")
        number = self._names.find(fqn, kind, index, dtype)
        if number is None:
            call_index = self._order.add(kind)
            number = self._names.add(TensorEntry(fqn, kind, index, dtype, tuple(tensor.shape), call_index, module))
        while len(self._buffer.row) < len(self._names):
            self._buffer.row.grow()
        return number

    def explain(self, error: Exception, tensor: Tensor, fqn: str, kind: str) -> None:
        """A read failed: note why `tensor` could not be observed, or raise `error` again when it should have been."""
        reason = why_unobservable(local_part(tensor))
        if reason is None:
            raise error
        self.note_not_observed(fqn, f"{kind}: {reason}")

    def note_unobserved(self, *, is_low_unread: bool = False) -> None:
        """Say of each module and parameter whose hook has never run that it is not observed, until it runs.

        `is_low_unread`: compiled graphs of low precision are not read.
        """
        self._note_silent(self.uncalled, COMPILED_LOW if is_low_unread else NEVER_CALLED)
        if any(hook.has_run() for hook in self.unreached.values()) or self._reached:
            self._reached = True
            self._note_silent(self.unreached, NEVER_REACHED)

    def _note_silent(self, silent: dict[str, Hook], reason: str) -> None:
        for fqn, hook in list(silent.items()):
            is_silence = self.not_observed.get(fqn, reason) in _SILENCE
            if hook.has_run():
                del silent[fqn]
                if is_silence:
                    self.not_observed.pop(fqn, None)
            elif is_silence:
                self.not_observed[fqn] = ONLY_EVALUATED if hook.has_run_in_evaluation() else reason

    def warn_of_rounding(self) -> None:
        """A tensor of 16 bits is read inside what was compiled: say once what that does to the training."""
        if not self._has_warned:
            self._has_warned = True
            config = sys.modules.get("torch._inductor.config")
            if getattr(config, "emulate_precision_casts", False):
                return
            logger.warning(
                "rangewatch: a model compiled in bfloat16 or float16 may round in other places while its outputs are "
                "read, so that losses differ in their last bits. attach without a level reads none there and changes "
                "no bit; nor does any level where torch._inductor.config.emulate_precision_casts is on"
            )

    def note_other_value(self, fqn: str, where: str, word: str) -> None:
        """The module `fqn` took or gave what has no range; `where` is such as "input[1]"."""
        if fqn in self.other_values or len(self.other_values) < limits.ACCOUNT_NAMES:
            # A new dict, since the old one may be on its way to the server.
            known = self.other_values.get(fqn, {})
            if known.get(where) == word:
                return
            self.other_values[fqn] = known | {where: word}

    def note_not_observed(self, fqn: str, reason: str) -> None:
        """Remember why something of the module or parameter `fqn` is missing; several reasons are joined."""
        known = self.not_observed.get(fqn)
        if known is None:
            self.not_observed[fqn] = reason
        elif reason not in known and len(known) + len(reason) < limits.MESSAGE_CHARACTERS:
            self.not_observed[fqn] = f"{known}; {reason}"


def local_part(tensor: Tensor) -> Tensor:
    """This rank's shard of a DTensor (reducing a DTensor itself may start a collective); other tensors as they are."""
    to_local: Any = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def is_being_captured(tensor: Tensor) -> bool:
    """Whether what is queued for `tensor` joins a CUDA graph: its replays would write to this step's row."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def is_capturing() -> bool:
    """Whether what is queued now joins a CUDA graph, and so nothing is computed."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def why_unobservable(tensor: Tensor) -> str | None:
    """Why the statistics of `tensor` cannot be taken; None when they can."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "inside a torch.func transform"
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return f"tensor subclass {type(tensor).__name__}"
    if tensor.is_nested:
        return "nested tensor"
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.').strip('_').replace('_', ' ')} tensor"
    if tensor.is_meta:
        return "meta tensor"
    if tensor.is_quantized:
        return "quantized tensor"
    if not tensor.is_floating_point():
        return "complex tensor" if tensor.is_complex() else BOOL if tensor.dtype is torch.bool else INTEGER
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in LIMITS:
        return f"{dtype} tensor"
    return FREED if is_freed(tensor) else None


def is_freed(tensor: Tensor) -> bool:
    """Whether the memory of a strided tensor is gone, or some of it, as sharding and offloading do."""
    extent = tensor.numel()
    if not tensor.is_contiguous():
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + extent) * tensor.itemsize
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() < needed
