"""Which parameters every rank must hold alike, bit for bit, whenever an optimizer is about to update them.

Those that DistributedDataParallel wraps: it starts with the first rank's, and all ranks add the same to them. Not those
that it was told to ignore, nor frozen ones, which anything may change; nor shards; nor any of a model whose ranks go
their own ways for some steps. Better none than one that may differ for a good reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakSet, ref

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rangewatch.observer import why_unobservable
from rangewatch.tensor_names import clean_parameters

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_NOT_REDUCING = {"noop_hook", "post_localSGD_hook"}
_SHARDING = {"FullyShardedDataParallel", "FSDPModule"}


class Replicated:
    """Those of one model. `is_told`: the user says that all of them are, by whatever means."""

    def __init__(self, model: nn.Module, *, is_told: bool) -> None:
        self._model, self._is_told = ref(model), is_told
        self._wrappers: WeakSet[DistributedDataParallel] = WeakSet()

    @property
    def is_found(self) -> bool:
        """Whether it is known how the model is replicated."""
        return self._is_told or bool(self._wrappers)

    def look(self) -> None:
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
            if (self._is_told or id(parameter) in wrapped) and parameter.requires_grad and is_whole(parameter):
                yield fqn, parameter, wrapped.get(id(parameter))

    def are_alike(self, wrapper: ref[DistributedDataParallel] | None) -> bool:
        """Whether all ranks hold alike what is wrapped so, at this moment."""
        if not dist.is_initialized() or dist.get_world_size() < 2:
            return False
        found = None if wrapper is None else wrapper()
        return self._is_told or (found is not None and not why_not(found))


def why_not(wrapper: DistributedDataParallel) -> str:
    """Why ranks need not be alike in what `wrapper` wraps, at the update of this step; "" where they must be."""
    if dist.get_world_size(wrapper.process_group) != dist.get_world_size():
        return "its process group has not all ranks"
    if wrapper._join_config.enable:
        return "join() lets ranks take unlike numbers of steps"
    if not wrapper.require_backward_grad_sync:
        return "the update is made inside no_sync()"
    if not all(_reduces(hook) for hook, _ in getattr(wrapper, "_comm_hooks", ())):
        return "its communication hook is not one of torch's that reduce"
    return ""


def is_whole(tensor: Tensor) -> bool:
    """Whether the tensor is all of a parameter, and is there: no shard of a DTensor, FSDP or Megatron."""
    is_part = hasattr(tensor, "to_local") or hasattr(tensor, "_is_flat_param")
    return not (is_part or getattr(tensor, "tensor_model_parallel", False) or why_unobservable(tensor))


def _not_ignored(wrapper: DistributedDataParallel) -> Iterable[nn.Parameter]:
    ignored = wrapper.parameters_to_ignore
    return [each for name, each in wrapper.module.named_parameters() if name not in ignored]


def _reduces(hook: Any) -> bool:
    while hasattr(hook, "func"):  # functools.partial
        hook = hook.func
    return getattr(hook, "__module__", "").startswith(_HOOKS) and getattr(hook, "__name__", "") not in _NOT_REDUCING


def _is_sharding(module: nn.Module) -> bool:
    return any(base.__name__ in _SHARDING for base in type(module).__mro__)
