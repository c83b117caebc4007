"""Which gradients the loop itself reduces over all ranks, by `torch.distributed.all_reduce` or `reduce`, before its
update. What `reduce` gives to one rank alone is to be sent to the others.

Such parameters are replicas as those that DistributedDataParallel wraps are, and nothing keeps them so: no one sends
rank 0's weights to the others, and no one sees to it that all ranks reduce the same. A gradient is known by the memory
that the call was given, and by that still being the same: memory that was reduced and let go of, as an activation's,
may be a gradient's next. One that is reduced in a copy, as in a flat buffer, is not known, nor a sparse
one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from rangewatch.core import limits
from rangewatch.core.guard import Guard, Guarded
from rangewatch.core.patched_function import PatchedFunction
from rangewatch.recording.eager import run_eagerly

_is_compiling = torch.compiler.is_dynamo_compiling

MEANT = "the loop has made an update without reducing this gradient"


class Reduction:
    """Of one parameter: `is_over` once it was updated with a gradient that was not reduced, as in local SGD. Then ranks
    may differ for a good reason, and go on differing."""

    __slots__ = ("__weakref__", "is_over")

    def __init__(self) -> None:
        self.is_over = False

    def why_not(self) -> str:
        """Why ranks need not be alike in it; "" where they must be."""
        return MEANT if self.is_over else ""


class ReducedByHand:
    """Of one model. Called by the training thread."""

    def __init__(self) -> None:
        self._memory: dict[tuple[int, int, int], StorageWeakRef] = {}
        """What was reduced over all ranks in the open step: its storage, first byte and number of elements. The weak
        reference keeps no memory, and the storage's number from being given to another."""
        self._known: dict[int, tuple[ref[nn.Parameter], Reduction]] = {}
        """By `id` of a parameter."""
        self._listener: Guarded | None = None

    @property
    def count(self) -> int:
        """Parameters that are known."""
        return len(self._known)

    def listen(self, guard: Guard, *, is_wanted: bool) -> None:
        """Hear of reductions while it is wanted, and for good once one was of a gradient."""
        if self._listener is None and is_wanted and dist.is_available():
            self._listener = Guarded(guard, "reductions by hand", self._reduced)
            _Reductions.listen(self._listener)
        elif self._listener is not None and not is_wanted and not self._known:
            self.forget()

    def forget(self) -> None:
        """Hear of none any more."""
        listener, self._listener = self._listener, None
        if listener is not None:
            _Reductions.forget(listener)

    def begin_step(self) -> None:
        """A step is open: nothing was reduced in it yet."""
        self._memory.clear()

    def _reduced(self, group: Any, given: Any) -> None:
        """`group` is about to reduce this. Over a part of the ranks it makes no replicas of all."""
        if group.size() != dist.get_world_size() or len(self._memory) >= limits.REDUCED_BY_HAND:
            return
        if isinstance(given, Tensor):
            given = (given,)
        for each in given if isinstance(given, (list, tuple)) else ():  # of an iterator the call gets what we leave
            if type(each) in (Tensor, nn.Parameter) and each.layout is torch.strided:
                storage = StorageWeakRef(each.untyped_storage())  # type: ignore[no-untyped-call]
                self._memory[storage.cdata, each.data_ptr(), each.numel()] = storage

    def before_update(self, parameters: Iterable[nn.Parameter]) -> None:
        """An optimizer is about to update its parameters. Of `parameters` it is to be known whether they were reduced;
        where nothing was, of none is it known any more."""
        if self._memory:
            for each in parameters:
                known = self.of(each)
                if known is not None:
                    known.is_over |= not self._is_reduced(each)
        elif self._known:
            alive = ((parameter, known) for of, known in self._known.values() if (parameter := of()) is not None)
            for parameter, known in alive:
                known.is_over |= parameter.grad is not None

    def find(self, parameters: Iterable[nn.Parameter]) -> None:
        """Look which of these were reduced in the open step, right before their update."""
        for each in parameters if self._memory else ():
            if self.of(each) is None and each.grad is not None and self._is_reduced(each):
                self._known[id(each)] = ref(each), Reduction()

    def _is_reduced(self, parameter: nn.Parameter) -> bool:
        """One without a gradient is not updated: what was alike stays so."""
        gradient = parameter.grad
        if gradient is None:
            return True
        if gradient.layout is not torch.strided:  # a sparse one has no memory of its own
            return False
        storage = gradient.untyped_storage()
        return (storage._cdata, gradient.data_ptr(), gradient.numel()) in self._memory

    def of(self, parameter: nn.Parameter) -> Reduction | None:
        """What is known of it; None where it never was reduced."""
        of, known = self._known.get(id(parameter), (None, None))
        return known if of is not None and of() is parameter else None


class _Reductions:
    """The methods that torch's `all_reduce` and `reduce` call, wrapped once a process while anybody listens.

    The functions themselves stay as they are: Dynamo compares them with what it compiles, and fails at others in their
    place.
    """

    _listeners: tuple[Guarded, ...] = ()
    """Replaced and never changed: any thread may reduce."""
    _functions = tuple(PatchedFunction(getattr(dist, "ProcessGroup", None), name) for name in ("allreduce", "reduce"))
    _lock = threading.Lock()

    @classmethod
    def listen(cls, listener: Guarded) -> None:
        with cls._lock:
            cls._listeners = (*cls._listeners, listener)
            for each in cls._functions:
                each.install(cls._around)

    @classmethod
    def forget(cls, listener: Guarded) -> None:
        with cls._lock:
            cls._listeners = tuple(each for each in cls._listeners if each is not listener)
            if not cls._listeners:
                for each in cls._functions:
                    each.remove()

    @classmethod
    def _around(cls, own: Callable[..., Any]) -> Callable[..., Any]:
        def reduced(group: Any, *args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.get("tensors", kwargs.get("tensor", ()))
            for each in () if _is_compiling() else cls._listeners:
                each(group, given)
            return own(group, *args, **kwargs)

        run_eagerly(reduced)
        return reduced
