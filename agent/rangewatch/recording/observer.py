"""What the hooks talk to: gives tensors their numbers and passes each to the reader of its device.

It also keeps account of what was not read, and why: such a tensor is "not observed", never "clean".

`CallOrder` says where a new tensor belongs among those that are known, in the order in which a step uses them.
`GradientBatch` reads gradients of parameters on an accelerator together when the backward ends, in few launches.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.core.limits import CALL_INDEX_GAP, SEEN_TENSORS
from rangewatch.recording.cost import Cost, TimedHook
from rangewatch.recording.device_ring import DeviceReader
from rangewatch.recording.host_reader import HostReader
from rangewatch.recording.step_buffer import StepBuffer
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.statistics import checksum
from rangewatch.statistics.dtype_limits import LIMITS
from rangewatch.wire.records import TensorEntry

Place = tuple[int, int]
"""Call index and number: what readers sort by."""

_FRONT: Place = (-1, -1)


class CallOrder:
    """Gives call indices with gaps, so that a tensor that first shows late comes after the one read before it.

    A pass is a run of outputs (a forward) or of gradients (a backward): in a second microbatch the one read before is
    the furthest of this pass. The furthest, not the last: a ReLU that is used everywhere says nothing of where we are.
    """

    def __init__(self) -> None:
        self._passed: deque[int] = deque(maxlen=SEEN_TENSORS)
        self.passed = self._passed.append
        """A tensor of this number is being read."""
        self._places: list[Place] = []
        self._ordered: list[Place] = []
        self._is_forward: list[bool] = []
        self._last_weight = _FRONT
        self.begin_step()

    def begin_step(self) -> None:
        """Nothing is read yet in the open step."""
        self._passed.clear()
        self._furthest = self._step_furthest = _FRONT
        self._in_forward = True

    def add(self, kind: str) -> int:
        """The call index of the next number, a tensor of `kind` that is about to be read for the first time."""
        while self._passed:
            number = self._passed.popleft()
            self._go_on(self._places[number], is_forward=self._is_forward[number])
        is_forward = kind in {"weight", "input", "output"}
        self._enter(is_forward)
        is_weight = kind == "weight"  # there before the forward, whenever it is read
        place = self._after(self._last_weight if is_weight else self._before()), len(self._places)
        if is_weight:
            self._last_weight = place
        self._places.append(place)
        self._is_forward.append(is_forward)
        insort(self._ordered, place)
        return place[0]

    def _go_on(self, place: Place, *, is_forward: bool) -> None:
        self._enter(is_forward)
        self._furthest = max(self._furthest, place)
        self._step_furthest = max(self._step_furthest, place)

    def _enter(self, is_forward: bool) -> None:
        if is_forward is not self._in_forward:
            self._in_forward = is_forward
            self._furthest = _FRONT

    def _before(self) -> Place:
        return self._step_furthest if self._furthest == _FRONT else self._furthest

    def _after(self, before: Place) -> int:
        position = bisect_right(self._ordered, before)
        if position == len(self._ordered):
            return max(before[0], 0) + CALL_INDEX_GAP
        gap = self._ordered[position][0] - before[0]
        # An eighth, so that a branch of 40 modules still fits; then equal indices, which the higher number puts behind.
        return max(before[0] + (max(gap // 8, 1) if gap > 1 else 0), 0)


_graph_task_id = torch._C._current_graph_task_id
_engine: Any = torch.autograd.Variable._execution_engine


class GradientBatch:
    """Holds gradients until their backward ends, some at a time. Their reads are queued as if they were made at once.

    Only such as stay what they are until then: not where DDP reduces them in place as soon as they are there, and not
    where another hook on the parameter may use them up.
    """

    def __init__(self, read_many: Callable[[Iterable[tuple[int, Tensor]]], None], guard: Guard, cost: Cost) -> None:
        self._read_many = read_many
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

    def read(self) -> None:
        """Read those that wait. Called when their backward ends; a backward that raises calls nothing."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._read_many(waiting)


def _stays(parameter: Tensor, gradient: Tensor) -> bool:
    hooks: Any = parameter._post_accumulate_grad_hooks
    if hooks is None or len(hooks) > 1:
        return False
    # FSDP2's gradients, DTensors, are reduced before they are here.
    return hasattr(gradient, "to_local") or not _is_distributed()


def _is_distributed() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


NEVER_CALLED = "its hook never ran: not called, or compiled"
ONLY_EVALUATED = "ran in evaluation only"
FREED, INTEGER = "freed before it was read", "integer tensor"
NEVER_REACHED = "no gradient has reached it"


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
    ) -> None:
        self.is_active = True
        self.cost = cost
        self._order = CallOrder()
        self.host = HostReader(
            buffer.row, self._read_elsewhere, self._order.passed, reads_all=not forces_device, histograms=histograms
        )
        self.read: Callable[[int, Tensor], None] = self.host.read
        """Merge a tensor into the open step as an observation of a number. Raises when it cannot be reduced."""
        self.device = DeviceReader(buffer.row)
        self.gradients = GradientBatch(self.read_many, guard, cost)
        self.not_observed: dict[str, str] = {}
        self.skipped = {"eval_forward": 0, "recompute": 0, "cuda_graph": 0}
        self.uncalled: dict[str, Callable[[], bool]] = {}
        """Modules whose hook has not run, with the question whether it has since."""
        self.evaluated: dict[str, Callable[[], bool]] = {}
        """For the same modules, whether it has run in evaluation, which is not recorded."""
        self.unreached: dict[str, Callable[[], bool]] = {}
        """The same for parameters and their gradients."""
        self.before_shipping: Callable[[], None] = lambda: None
        self.before_closing: list[Callable[[], None]] = [self.gradients.read]
        """Each reads what is read when a step ends."""
        self.after_opening: list[Callable[[int], None]] = []
        """Each is told of a step that is open, by its number."""
        self.other_values: dict[str, dict[str, str]] = {}
        """What modules take and give that has no range: module -> "input[1]" -> "None", "not a tensor" or the like."""
        self._names, self._buffer, self._forces_device = names, buffer, forces_device
        self._reached = False

    def begin_step(self, *, is_full: bool) -> None:
        """The last step is closed, the next one open."""
        self._order.begin_step()
        self.device.end_step()
        self.host.begin_step(is_full=is_full)

    def read_many(self, pairs: Iterable[tuple[int, Tensor]]) -> None:
        """The same for several tensors that are there at once: few launches on an accelerator."""
        there = []
        for number, tensor in pairs:
            local = local_part(tensor)
            if self.is_on_device(local) and not is_freed(local) and not is_being_captured(local):
                self._order.passed(number)
                there.append((number, local))
            else:
                self.host.read(number, tensor)
        if there:
            self.device.read_many(there)

    def read_checksums(self, pairs: Iterable[tuple[int, Tensor]]) -> None:
        """Put the checksum of each tensor, which is whole and dense, into the open row of its number."""
        there = []
        for number, tensor in pairs:
            if self.is_on_device(tensor):
                if not is_being_captured(tensor):  # in a CUDA graph it would be computed at each replay, for nobody
                    there.append((number, tensor))
            else:
                self._buffer.row.set_checksum(number, checksum.of_host(tensor))
        if there:
            self.device.read_checksums(there)

    def is_on_device(self, value: Any) -> bool:
        """Whether reading `value` would make the host wait for a device."""
        return isinstance(value, Tensor) and (self._forces_device or not value.is_cpu)

    def _read_elsewhere(self, number: int, tensor: Tensor) -> None:
        local = local_part(tensor)
        if local.is_cpu and not self._forces_device:
            self.host.read(number, local.as_subclass(Tensor))
        elif is_freed(local):  # a kernel would read memory that is another's by now
            self.note_not_observed(self._names.entries[number].fqn, FREED)
        elif is_being_captured(local):
            self.skipped["cuda_graph"] += 1
            self.note_not_observed(
                self._names.entries[number].fqn, "captured in a CUDA graph, whose replays call no hook"
            )
        else:
            self.device.read(number, local)

    def number(self, tensor: Tensor, fqn: str, kind: str, index: int, module: str) -> int:
        """The number of the tensor with this name in `tensor`'s dtype, or -1 when it cannot be observed."""
        tensor = local_part(tensor)
        reason = why_unobservable(tensor)
        if reason == INTEGER and kind == "input":  # token ids: nothing that anybody would miss
            self.note_other_value(fqn, f"{kind}[{index}]", INTEGER)
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

    def note_unobserved(self) -> None:
        """Say of each module and parameter whose hook has never run that it is not observed, until it runs."""
        self._note_silent(self.uncalled, NEVER_CALLED)
        if any(has_run() for has_run in self.unreached.values()) or self._reached:
            self._reached = True
            self._note_silent(self.unreached, NEVER_REACHED)

    def _note_silent(self, silent: dict[str, Callable[[], bool]], reason: str) -> None:
        for fqn, has_run in list(silent.items()):
            is_silence = self.not_observed.get(fqn, reason) in {reason, ONLY_EVALUATED}
            if has_run():
                del silent[fqn]
                if is_silence:
                    self.not_observed.pop(fqn, None)
            elif is_silence:
                has_run_in_evaluation = self.evaluated.get(fqn)
                was_evaluated = has_run_in_evaluation is not None and has_run_in_evaluation()
                self.not_observed[fqn] = ONLY_EVALUATED if was_evaluated else reason

    def note_other_value(self, fqn: str, where: str, word: str) -> None:
        """The module `fqn` took or gave what has no range; `where` is such as "input[1]"."""
        if fqn in self.other_values or len(self.other_values) < limits.ACCOUNT_NAMES:
            # A new dict, since the old one may be on its way to the server.
            known = self.other_values.get(fqn, {})
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
        return "complex tensor" if tensor.is_complex() else INTEGER
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
