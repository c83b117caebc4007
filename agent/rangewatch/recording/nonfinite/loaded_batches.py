"""Whether what torch's DataLoader gave last is finite, asked where the model or the loss was given NaN or Inf.

What is finite there and not in the model was made between the two, by code that no gradient passes. Batches are not
kept alive, and read then alone: so nothing is known of one that is gone or was changed in place, where that is so of
any of several loaders, of batches that were all loaded ahead, of those that another thread has loaded, and of loops
that make their data themselves.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor

from rangewatch.recording.events import OpenStep
from rangewatch.wire.events import LoadedBatch, TensorDetails

KEPT = 16
"""Batches of which is known where they lie; where the oldest lies there still they are loaded far ahead."""

TENSORS, OBJECTS = 8, 64
"""Of a batch. Of one with more nothing is known, nor of one that holds what is neither tensor nor plain."""

_PLAIN = (int, str, bytes, type(None))


class Reader(Protocol):
    """Reads the range of a tensor."""

    def brief(self, name: str, tensor: Tensor) -> TensorDetails | None:
        """None where it cannot be read."""


class _Batch(NamedTuple):
    """`tensors`: each with its version, which changes with what is written to it; None where there are too many."""

    step: int
    iterator: int
    """Which gave it."""
    tensors: tuple[tuple[ref[Tensor], int], ...] | None

    @property
    def is_there(self) -> bool:
        return self.tensors is not None and all(each() is not None for each, _ in self.tensors)

    @property
    def is_gone(self) -> bool:
        return self.tensors is not None and bool(self.tensors) and all(each() is None for each, _ in self.tensors)


class LoadedBatches:
    """For the training thread."""

    def __init__(self, open_step: OpenStep) -> None:
        self._open_step, self._thread = open_step, threading.get_ident()
        self._batches: deque[_Batch] = deque(maxlen=KEPT)

    def given(self, iterator: Any, batch: Any) -> None:
        """A loader's iterator has given a batch."""
        if threading.get_ident() != self._thread:
            return
        every = batch_tensors(batch)
        tensors = [each for each in every or () if each.is_floating_point() or each.is_complex()]
        is_usable = every is not None and not any(each.is_inference() for each in tensors)
        known = tuple((ref(each), each._version) for each in tensors) if is_usable else None
        self._batches.append(_Batch(self._open_step.number, id(iterator), known))

    def known(self, bad: Iterable[Tensor], reader: Reader) -> LoadedBatch | None:
        """What is known of the batches at hand; `bad`: tensors that were given to the model or the loss, of which some
        are not finite. None where nothing is known."""
        batches, first = list(self._batches), self._open_step.number - 1
        newest = {each.iterator: each for each in batches if each.step >= first}
        if not newest or not all(each.is_there for each in newest.values()):
            return None
        if len(batches) == KEPT and not batches[0].is_gone:
            return None
        storages, count, bad_count = set(), 0, 0
        for batch in batches:
            for reference, version in batch.tensors or ():
                tensor = reference()
                if tensor is None:
                    continue
                if not tensor.numel():
                    continue
                details = reader.brief("", tensor)
                if details is None or tensor._version != version:
                    return None
                storages.add(tensor.untyped_storage().data_ptr())
                count, bad_count = count + 1, bad_count + details.is_bad
        if not count:  # the numbers of rows or words: what is not finite lies elsewhere
            return None
        return LoadedBatch(count, bad_count, any(_lies_in(each, storages, reader) for each in bad))


def batch_tensors(batch: Any) -> list[Tensor] | None:
    """Its tensors; None where there are none, too many, or it holds other things than tensors and plain values, as an
    array or an object of a class of its own: whether these are finite is not known."""
    tensors: list[Tensor] = []
    waiting, count = [batch], 0
    while waiting:
        each = waiting.pop()
        count += 1
        if type(each) is Tensor:
            tensors.append(each)
        elif isinstance(each, (tuple, list, Mapping)) and len(each) <= OBJECTS:
            waiting += reversed([*each.values()] if isinstance(each, Mapping) else each)
        elif not isinstance(each, _PLAIN):
            return None
        if count > OBJECTS or len(tensors) > TENSORS:
            return None
    return tensors or None


def _lies_in(tensor: Tensor, storages: set[int], reader: Reader) -> bool:
    is_there = type(tensor) is Tensor and tensor.layout is torch.strided and bool(tensor.numel())
    is_there = is_there and tensor.untyped_storage().data_ptr() in storages
    details = reader.brief("", tensor) if is_there else None
    return details is not None and details.is_bad
