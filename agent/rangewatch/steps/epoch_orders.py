"""Event `repeated_order`: a loader that is there to shuffle gives a pass the batches of the one before, in its order.

Of torch's DistributedSampler it is known by its epoch, which only `set_epoch` changes: of the same epoch the order is
the same. Of other samplers by a few elements of the first batches of two passes, which are all the same; and why, where
`set_epoch` was called with another number, or torch's random numbers were in the same state. Counted are
passes of whose batches steps were made: an evaluation may have any order, over the training's own loader too. A step is
of the loader that gave the last batch before it. A loader that is made anew for each pass is not seen.
"""

from __future__ import annotations

import threading
import zlib
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from rangewatch.core import limits
from rangewatch.recording.nonfinite.loaded_batches import batch_tensors
from rangewatch.steps.interface import StepRecorder
from rangewatch.wire.events import RepeatedOrder

FEWEST, MOST = 4, 8
"""Batches of a pass that must have been there, and that are compared."""

ELEMENTS, TENSORS = 16, 4
"""Of a batch that are compared: the first of each of its first tensors."""

FAR = 256
"""Batches of a pass in which a step must be made: microbatches come before it."""

MOST_EVENTS = 16

_SHUFFLES = ("shuffle", "seed", "generator", "rng")
"""A sampler that has one of these draws its order: that of another, as of rows by their length, may be meant to be the
same in each pass, though a trainer tells it each epoch."""


class _Pass:
    """One over a loader. `epoch`: that of its sampler, None where it does not decide on the order."""

    def __init__(self, sampler: Any) -> None:
        self.epoch, self.count, self.is_trained, self.is_judged = _epoch(sampler), 0, False, False
        told = getattr(sampler, "epoch", None)
        self.told = told if isinstance(told, int) else None
        """What `set_epoch` was given, of any sampler."""
        self.state = _random_state(sampler)
        self.first_step = -1
        self.prints: list[int] = []


class _Loader:
    """The pass before the one that goes on, of those that were trained on."""

    def __init__(self) -> None:
        self.now: _Pass | None = None
        self.before: _Pass | None = None
        self.repeats = 0
        """Passes in a row in the order of the one before."""


class EpochOrders:
    """Hears of the loaders' calls; of a thread that loads ahead of the training nothing is known."""

    def __init__(self, agent: StepRecorder) -> None:
        self._agent, self._thread = agent, threading.get_ident()
        self._loaders: WeakKeyDictionary[DataLoader[Any], _Loader] = WeakKeyDictionary()
        self._iterators: WeakKeyDictionary[Any, ref[DataLoader[Any]]] = WeakKeyDictionary()
        self._last: _Pass | None = None
        """Of what any loader gave last; None where that loader is none that shuffles."""
        self._last_step = 0
        self._sent = 0

    @property
    def _is_on(self) -> bool:
        return self._agent.observer.is_active and threading.get_ident() == self._thread

    def began(self, loader: Any, iterator: Any) -> None:
        """A pass over `loader` begins, by `iterator`."""
        if not self._is_on:
            return
        self._note_step(self._last)
        sampler = _shuffling(loader)
        if sampler is None:
            return
        known = self._loaders.setdefault(loader, _Loader())
        if known.now is not None and known.now.is_trained and known.now.count >= FEWEST:
            known.before = known.now
        known.now = _Pass(sampler)
        self._iterators[iterator] = ref(loader)

    def given(self, iterator: Any, batch: Any) -> None:
        """`iterator` has given a batch."""
        if not self._is_on:
            return
        reference = self._iterators.get(iterator)
        loader = None if reference is None else reference()
        known = None if loader is None else self._loaders.get(loader)
        now = None if known is None else known.now
        self._note_step(now)
        if loader is None or known is None or now is None or now.count >= FAR:
            return
        if not now.count:
            now.first_step = self._agent.step
            if now.epoch is not None and now.epoch != _epoch(_shuffling(loader)):
                now.epoch = None  # set since the iterator was made: whether in time depends on its workers
        now.count += 1
        if now.epoch is None and len(now.prints) < MOST:
            now.prints.append(_print(batch))
        is_due = now.count >= FEWEST if now.epoch is not None else len(now.prints) == MOST
        if known.before is not None and is_due and now.is_trained and not now.is_judged:
            now.is_judged = True
            self._judge(loader, known, known.before, now)

    def _note_step(self, now: _Pass | None) -> None:
        """Of `now` is the batch from here on."""
        step = self._agent.step
        if self._last is not None and step > self._last_step:
            self._last.is_trained = True
        self._last, self._last_step = now, step

    def _judge(self, loader: Any, known: _Loader, before: _Pass, now: _Pass) -> None:
        is_epoch = now.epoch is not None
        is_same = now.epoch == before.epoch if is_epoch else _are_same(before.prints, now.prints)
        is_passed_over = not is_epoch and now.told != before.told
        is_seeded = now.state is not None and now.state == before.state
        sampler = _shuffling(loader)
        # Of one that says nothing of shuffling it is known by its epoch that another order is wanted, if it draws any.
        is_passed_over = is_passed_over and any(hasattr(sampler, each) for each in _SHUFFLES)
        is_same = is_same and (is_passed_over or isinstance(sampler, RandomSampler) or hasattr(sampler, "shuffle"))
        had, known.repeats = known.repeats, known.repeats + 1 if is_same else 0
        if self._sent < MOST_EVENTS and (known.repeats == 1 or (had and not is_same)):
            self._sent += 1
            name, batches = type(sampler).__name__[: limits.NAME_CHARACTERS], 0 if is_epoch else MOST
            self._agent.events.add(
                RepeatedOrder(
                    name, known.repeats, now.first_step, batches, now.told or 0,
                    is_epoch_unused=is_same and is_passed_over, is_seeded=is_same and is_seeded,
                )
            )  # fmt: skip


def _shuffling(loader: Any) -> Any:
    """The sampler of a loader, if it is there to shuffle."""
    of_batches = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(of_batches, "sampler", None), of_batches, getattr(loader, "sampler", None)):
        if isinstance(sampler, RandomSampler):
            return sampler
        is_told = callable(getattr(sampler, "set_epoch", None)) and hasattr(sampler, "epoch")
        if is_told and getattr(sampler, "shuffle", True) is True:
            return sampler
    return None


def _random_state(sampler: Any) -> int | None:
    """A number of the state of what a RandomSampler shuffles by."""
    if not isinstance(sampler, RandomSampler):
        return None
    generator = getattr(sampler, "generator", None) or torch.default_generator  # of a subclass it may not be set
    return hash(bytes(generator.get_state().numpy())) if generator.device.type == "cpu" else None


def _epoch(sampler: Any) -> int | None:
    """Where nothing but `set_epoch` decides on the order."""
    is_torch_s = isinstance(sampler, DistributedSampler) and type(sampler).__iter__ is DistributedSampler.__iter__
    return sampler.epoch if is_torch_s and isinstance(sampler.epoch, int) else None


def _are_same(before: list[int], now: list[int]) -> bool:
    """The batches of a pass differ from one another, and are those of the other one."""
    return len(now) == MOST and before == now and len(set(now)) == MOST and 0 not in now


def _print(batch: Any) -> int:
    """A number of a few elements of a batch, 0 where it has none in host memory."""
    number = 0
    for each in [each for each in batch_tensors(batch) or () if _is_readable(each)][:TENSORS]:
        flat = each.detach().reshape(-1)[:ELEMENTS]
        number = zlib.crc32(flat.double().numpy().tobytes(), number)
    return number


def _is_readable(value: Tensor) -> bool:
    is_plain = value.is_cpu and value.layout is torch.strided and value.is_contiguous() and bool(value.numel())
    return is_plain and not value.is_complex() and not value.is_quantized
