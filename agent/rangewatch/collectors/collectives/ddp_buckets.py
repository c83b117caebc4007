"""Which bucket of DistributedDataParallel an all_reduce was, and whose gradients are in it.

Nothing is asked of torch where collectives are called: a bucket is known again by its place in the order of the step's
all_reduces and by its size, which DDP's logging data say.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from typing import Any
from weakref import ref

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rangewatch.collectors.collectives.process_groups import Record
from rangewatch.core.guard import Guard, Guarded
from rangewatch.core.patched_function import PatchedFunction

REFRESHES = 20
"""Looks, a second apart, at one model's logging data: its buckets are made anew after the first step, then stay."""


class Bucket:
    """Bytes of one bucket, and the names of the parameters whose gradients it holds, in the order of the bucket."""

    def __init__(self, size_bytes: int, parameters: list[str]) -> None:
        self.size_bytes, self.parameters = size_bytes, parameters


class DdpBuckets:
    """The buckets of the process's models. On the collectors' thread, but for `_follow`."""

    def __init__(self, guard: Guard) -> None:
        self._model: ref[Any] | None = None
        """Of several, the one that was found first."""
        self._refresh_count = 0
        self._text: tuple[str, str] = ("", "")
        self._group = ""
        self._next = 0
        self._step = -1
        self.buckets: list[Bucket] = []
        self._added = Guarded(guard, "a model was wrapped in DDP", self._follow)

    def start(self) -> None:
        """Hear of models that are wrapped from here on."""
        _Wrapping.listen(self._added)

    def stop(self) -> None:
        """Hear of no more."""
        _Wrapping.forget(self._added)

    def watch(self, model: nn.Module) -> None:
        """A model that may be, or hold, one that is wrapped."""
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                self._follow(module)

    def refresh(self) -> bool:
        """Read the buckets anew; whether they are others than before. Call it only while training advances.

        Reading waits for a lock that DDP holds while it calls collectives, so a hang would take this thread with it.
        """
        active = getattr(DistributedDataParallel, "_active_ddp_module", None)
        if active is not None:
            self._follow(active)
        if self._refresh_count >= REFRESHES:
            return False
        model = self._model() if self._model is not None else None
        self._refresh_count += model is not None
        return model is not None and self._read(model)

    def number(self, records: Iterable[Record], *, are_steps_exact: bool) -> None:
        """Set `bucket` of those of `records`, in the order of their calls, that are a bucket's all_reduce."""
        buckets = self.buckets  # a refresh that took long may bring others meanwhile
        for record in records if buckets else ():
            if are_steps_exact and record.step != self._step:
                self._step, self._next = record.step, 0
            places = (self._next % len(buckets), 0)
            # An all_reduce of the first bucket's size, where another is awaited, begins a backward anew.
            place = next((place for place in places if self._is_bucket(record, buckets[place])), None)
            if place is not None:
                record.bucket, self._next = place, (place + 1) % len(buckets)

    def _is_bucket(self, record: Record, bucket: Bucket) -> bool:
        group = record.group
        return (
            record.kind.name == "all_reduce"
            and record.bytes == bucket.size_bytes
            and group is not None
            and group.name == self._group
        )

    def _follow(self, model: Any) -> None:
        if self._model is None or self._model() is None:
            self._model, self._refresh_count = ref(model), 0

    def _read(self, model: Any) -> bool:
        data = model._get_ddp_logging_data()
        sizes, indices = data.get("rebuilt_bucket_sizes", ""), data.get("rebuilt_per_bucket_param_indices", "")
        if not sizes or not indices:
            sizes, indices = data.get("bucket_sizes", ""), data.get("initial_per_bucket_param_indices", "")
        if not sizes or (sizes, indices) == self._text:
            return False
        self._text, self._group, self._next = (sizes, indices), str(model.process_group.group_name), 0
        names = _reduced_parameters(model)
        held = [
            [names[int(index)] for index in bucket.split() if int(index) < len(names)] for bucket in indices.split(",")
        ]
        totals = [int(size) for size in sizes.split(",")]
        self.buckets = [Bucket(size, held[place] if place < len(held) else []) for place, size in enumerate(totals)]
        return True


class _Wrapping:
    """Who hears of models that DDP has wrapped: by its constructor, which is itself again when nobody does.

    Not by torch's hook for modules that are added: torch goes through those without a lock wherever a module is built,
    and one that our thread adds or takes away meanwhile is a RuntimeError in the user's code.
    """

    _listeners: tuple[Guarded, ...] = ()
    """Replaced and never changed: any thread may build a model."""
    _constructor = PatchedFunction(DistributedDataParallel, "__init__")
    _lock = threading.Lock()

    @classmethod
    def listen(cls, listener: Guarded) -> None:
        with cls._lock:
            cls._listeners = (*cls._listeners, listener)
            cls._constructor.install(cls._around)

    @classmethod
    def forget(cls, listener: Guarded) -> None:
        with cls._lock:
            cls._listeners = tuple(each for each in cls._listeners if each is not listener)
            if not cls._listeners:
                cls._constructor.remove()

    @classmethod
    def _around(cls, own: Any) -> Any:
        @functools.wraps(own)
        def wrapped(model: Any, *args: Any, **kwargs: Any) -> None:
            own(model, *args, **kwargs)
            for each in cls._listeners:
                each(model)

        return wrapped


def _reduced_parameters(model: Any) -> list[str]:
    ignored: set[str] = getattr(model, "parameters_to_ignore", set())
    named = model.module.named_parameters()
    return [name for name, parameter in named if parameter.requires_grad and name not in ignored]
