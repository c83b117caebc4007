"""Reads checksums of what all ranks must hold alike, for the server to compare: no collective, and no waiting.

When the step's first update is about to be made, which is the same point on every rank: a value that differs has not
yet spread to the others as NaN, which would make all alike again. Each parameter has its turn once in `every` steps, by
the step's number alone, so that all ranks read the same ones though one of them was started anew.

Which parameters every rank must hold alike, bit for bit, whenever an optimizer is about to update them.

Those that DistributedDataParallel wraps: it starts with the first rank's, and all ranks add the same to them. Not those
that it was told to ignore, nor frozen ones, which anything may change; nor shards; nor any of a model whose ranks go
their own ways for some steps. Better none than one that may differ for a good reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakSet, ref

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rangewatch.core import limits
from rangewatch.recording.events import Events
from rangewatch.recording.observer import ForwardListener, Observer, StepReader, why_unobservable
from rangewatch.recording.tensor_names import TensorNames, clean_parameters
from rangewatch.wire.events import CommunicationHook

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_NOT_REDUCING = {"noop_hook", "post_localSGD_hook"}
_SHARDING = {"FullyShardedDataParallel", "FSDPModule"}


class Replicated:
    """Those of one model. `is_reported`: the user says that all of them are, by whatever means."""

    def __init__(self, model: nn.Module, *, is_reported: bool) -> None:
        self._model, self._is_reported = ref(model), is_reported
        self._wrappers: WeakSet[DistributedDataParallel] = WeakSet()

    @property
    def is_found(self) -> bool:
        """Whether it is known how the model is replicated."""
        return self._is_reported or bool(self._wrappers)

    def find_wrappers(self) -> None:
        """Find what wraps the model, or parts of it. Inside a forward: a wrapper may be beyond the model."""
        model, active = self._model(), getattr(DistributedDataParallel, "_active_ddp_module", None)
        if model is not None:
            inside = (module for module in model.modules() if isinstance(module, DistributedDataParallel))
            self._wrappers.update(inside)
            if active is not None and any(module is model for module in active.modules()):
                self._wrappers.add(active)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter, ref[DistributedDataParallel] | None]]:
        """They, by clean name and with what wraps them, now: in an order that is the same on all ranks."""
        model = self._model()
        if model is None or any(_is_sharding(module) for module in model.modules()):
            return
        wrapped = {id(each): ref(wrapper) for wrapper in self._wrappers for each in _not_ignored(wrapper)}
        for fqn, parameter in clean_parameters(model):
            if (self._is_reported or id(parameter) in wrapped) and parameter.requires_grad and is_whole(parameter):
                yield fqn, parameter, wrapped.get(id(parameter))

    def own_hook(self) -> str:
        """The first of the wrappers' communication hooks that is the user's; "" where none is."""
        return next((name for wrapper in self._wrappers if (name := own_hook(wrapper))), "")

    def are_alike(self, wrapper: ref[DistributedDataParallel] | None) -> bool:
        """Whether all ranks are to hold alike what is wrapped so, at this moment. By a hook of the user's they may not:
        event `communication_hook` says which."""
        if not dist.is_initialized() or dist.get_world_size() < 2:
            return False
        module = None if wrapper is None else wrapper()
        return self._is_reported or (module is not None and not why_not(module))


def why_not(wrapper: DistributedDataParallel) -> str:
    """Why ranks need not be alike in what `wrapper` wraps, at the update of this step; "" where they must be."""
    if dist.get_world_size(wrapper.process_group) != dist.get_world_size():
        return "its process group has not all ranks"
    if wrapper._join_config.enable:
        return "join() lets ranks take unlike numbers of steps"
    if not wrapper.require_backward_grad_sync:
        return "the update is made inside no_sync()"
    if any(_is_torch_s(hook) and not _reduces(hook) for hook in _hooks(wrapper)):
        return "its communication hook leaves ranks to themselves for a while"
    return ""


def own_hook(wrapper: DistributedDataParallel) -> str:
    """The name of a communication hook of the user's, of which nobody knows whether it reduces; "" where none is."""
    return next((_name(hook) for hook in _hooks(wrapper) if not _is_torch_s(hook)), "")


def is_whole(tensor: Tensor) -> bool:
    """Whether the tensor is all of a parameter, and is there: no shard of a DTensor, FSDP or Megatron."""
    is_part = hasattr(tensor, "to_local") or hasattr(tensor, "_is_flat_param")
    return not (is_part or getattr(tensor, "tensor_model_parallel", False) or why_unobservable(tensor))


def _not_ignored(wrapper: DistributedDataParallel) -> Iterable[nn.Parameter]:
    ignored = wrapper.parameters_to_ignore
    return [each for name, each in wrapper.module.named_parameters() if name not in ignored]


def _hooks(wrapper: DistributedDataParallel) -> Iterator[Any]:
    for hook, _ in getattr(wrapper, "_comm_hooks", ()):
        while hasattr(hook, "func"):  # functools.partial
            hook = hook.func
        yield hook


def _is_torch_s(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(_HOOKS)


def _reduces(hook: Any) -> bool:
    return getattr(hook, "__name__", "") not in _NOT_REDUCING


def _name(hook: Any) -> str:
    return f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', type(hook).__qualname__)}".lstrip(".")


def _is_sharding(module: nn.Module) -> bool:
    return any(base.__name__ in _SHARDING for base in type(module).__mro__)


class Turn(NamedTuple):
    """A parameter that is read in one of each `every` steps, and what wraps it."""

    fqn: str
    parameter: ref[nn.Parameter]
    wrapper: ref[Any] | None


class ReplicaReads(StepReader):
    """Called around each step. `every`: see `Options.replica_every`; `in_forward`: told where a forward begins."""

    def __init__(
        self, observer: Observer, names: TensorNames, replicated: Replicated, every: int,
        in_forward: list[ForwardListener], events: Events,
    ) -> None:  # fmt: skip
        self._observer, self._names, self._replicated, self._every = observer, names, replicated, every
        self._events, self._hook = events, ""
        self._turns: dict[int, list[Turn]] = {}
        self._step: int | None = None
        """The open step, until it has been read."""
        self._assign_at: int | None = None
        self._search_count = 0
        self._in_forward = in_forward

    def begin_step(self, step: int) -> None:
        """`step` is open: look in its forward for what wraps the model, unless that is known."""
        self._step = step
        is_wanted = not self._replicated.is_found and self._search_count < limits.REPLICA_SEARCHES
        if is_wanted and self not in self._in_forward:
            self._in_forward.append(self)

    def read_now(self) -> None:
        """An optimizer is about to update the parameters, or the step to be closed: read those whose turn it is."""
        step, self._step = self._step, None
        if step is None or not self._replicated.is_found:
            return
        if self._assign_at is None or step >= self._assign_at:
            self._assign_turns()
            self._emit_hook()
            self._assign_at = step + max(self._every, limits.REPLICA_ASSIGN_EVERY)
        due = self._turns.get(step % self._every)
        if due:
            self._observer.read_checksums(self._numbered(due))

    def end_step(self) -> None:
        """Read those whose turn it is, if no optimizer has stepped."""
        self.read_now()

    def _emit_hook(self) -> None:
        """Say by which hook of the user's gradients are reduced, if that is another than before."""
        hook = self._replicated.own_hook()
        if hook != self._hook:
            self._hook = hook
            self._events.add(CommunicationHook(hook[: limits.NAME_CHARACTERS]))

    def _assign_turns(self) -> None:
        """Give each parameter its turn: every step has about as many bytes to read."""
        parameters = list(self._replicated.parameters())
        total = sum(parameter.nbytes for _, parameter, _ in parameters)
        self._turns, before = {}, 0
        for fqn, parameter, wrapper in parameters:
            turns = self._turns.setdefault(self._every * before // max(total, 1), [])
            turns.append(Turn(fqn, ref(parameter), wrapper))
            before += parameter.nbytes

    def _numbered(self, turns: Collection[Turn]) -> Iterator[tuple[int, Tensor]]:
        """What is to be read now, each with the number of the row that takes it."""
        alike = {wrapper: self._replicated.are_alike(wrapper) for wrapper in {each.wrapper for each in turns}}
        for turn in turns:
            parameter = turn.parameter()
            if parameter is None or not alike[turn.wrapper]:
                continue
            # The parameter's own goes into the row of its `grad`: not every run has one of kind `weight`.
            for kind, tensor in (("grad", parameter), ("reduced_grad", parameter.grad)):
                if tensor is not None and is_whole(tensor):
                    number = self._names.find(turn.fqn, kind, 0, str(tensor.dtype).removeprefix("torch."))
                    if number is not None and tensor.numel():
                        yield number, tensor.detach()

    def forward_begins(self) -> None:
        """Look, once a step, for what wraps the model."""
        self._in_forward.remove(self)
        self._search_count += 1
        self._replicated.find_wrappers()
