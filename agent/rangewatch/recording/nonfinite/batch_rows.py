"""Which rows of the data each step was made of, as the loop says: `rangewatch.batch(ids=..., losses=...)`.

The last `limits.BATCH_STEPS` steps are in memory, with their losses wherever these are; nothing waits for a device.
What a step holds is known some steps later, when the sender's thread has it. Where something is wrong then (a first
NaN or Inf of a tensor, a loss, gradient or output far above the steps before) the rows of that step and of the two
before are sent, as an event of each step; those of the open one when an exception ends the training.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rangewatch.core import limits
from rangewatch.core.guard import logger
from rangewatch.recording.events import Drops, Events, sendable
from rangewatch.recording.nonfinite.odd_steps import OddSteps
from rangewatch.recording.observer import is_being_captured, local_part, why_unobservable
from rangewatch.recording.rows.device_ring import CopyEvent, new_event
from rangewatch.recording.rows.step_buffer import Block
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.wire.events import BatchRows, RowLoss

_PLAIN = {int, str}
_WAITS = 64
"""Blocks after which what was asked of a step is given up: its line comes after the step, or its copy never does."""


class _Refused(Exception):
    """What an argument is, that cannot be recorded."""


class _Part:
    """One call: a microbatch. `ids`: as given, a copy of the first `limits.BATCH_IDS`."""

    __slots__ = ("copied", "count", "ids", "loss_count", "losses")

    def __init__(self, ids: Any, count: int) -> None:
        self.ids, self.count = ids, count
        self.losses: Tensor | None = None
        self.loss_count = 0
        self.copied: CopyEvent | None = None

    def is_complete(self) -> bool:
        return self.copied is None or self.copied.query()


class Batches:
    """`add` is for the training thread, `read_block` and `flush` are for the sender's, `failed` is for any."""

    def __init__(self, names: TensorNames, events: Events, drops: Drops) -> None:
        self._names, self._events, self._drops = names, events, drops
        self._parts: dict[int, list[_Part]] = {}
        self._warned: set[str] = set()
        self._at_top: set[int] = set()
        """Lines that name the rows of the step to come, by number."""
        self._late_step = -1
        self._watch = OddSteps(names)
        self._wanted: dict[int, str] = {}
        self._left: dict[int, int] = {}
        self._sent: deque[int] = deque(maxlen=limits.BATCH_EVENTS)
        self._count = 0
        self._lock = threading.Lock()

    def add(self, step: int, ids: Any, losses: Any, caller: int, *, is_between: bool, is_first: bool) -> None:
        """Rows of `step`, the open one, or of the one just closed; what cannot be read is warned of once.

        `caller`: a number for the line that calls. `is_between`: nothing of the open step has begun. Then the rows are
        of the step just closed if nobody named any before it closed, but for lines that have stood at the top.
        """
        step = self._step_of(step, caller, is_between=is_between, is_first=is_first)
        parts = self._parts.setdefault(step, [])
        part = _Part(None, 0)
        try:
            if ids is not None:
                part = _Part(*_ids(ids, limits.BATCH_IDS - sum(each.count for each in parts)))
        except _Refused as why:
            self._warn("ids", str(why))
        try:
            if losses is not None:
                _read_losses(part, losses)
        except _Refused as why:
            self._warn("losses", str(why))
        if part.count and part.loss_count and part.count != part.loss_count:
            self._warn("losses", f"there are {part.loss_count} of {part.count} ids: one loss a row is wanted")
            part.losses, part.loss_count = None, 0
        if part.count or part.loss_count:
            parts.append(part)
        while len(self._parts) > limits.BATCH_STEPS:
            del self._parts[next(iter(self._parts))]

    def ids_of(self, step: int) -> list[int | str]:
        """The rows of a step that the loop has named so far."""
        return [
            _sent_id(each) for part in self._parts.get(step, ()) if part.ids is not None for each in _listed(part.ids)
        ]

    def _step_of(self, step: int, caller: int, *, is_between: bool, is_first: bool) -> int:
        if not is_between or is_first or caller in self._at_top:
            if is_between and is_first:
                self._is_at_top(caller)
            return step
        if step - 1 in self._parts and self._late_step != step - 1:
            self._is_at_top(caller)
            return step
        self._late_step = step - 1
        return step - 1

    def _is_at_top(self, caller: int) -> None:
        if len(self._at_top) < limits.ACCOUNT_NAMES:
            self._at_top.add(caller)

    def _warn(self, argument: str, why: str) -> None:
        self._drops.add(f"batch_{argument}")
        if argument not in self._warned:
            self._warned.add(argument)
            logger.warning("rangewatch: batch(%s=...) is not recorded: %s", argument, why)

    def read_block(self, block: Block) -> None:
        """Steps as they are shipped. By the sender's thread."""
        if not self._parts:
            return
        for step, reason in self._watch.of(block):
            for before in (2, 1, 0):
                self._wanted.setdefault(step - before, reason if not before else "before")
        for step in list(self._wanted):
            self._left[step] = self._left.get(step, _WAITS) - 1
            if self._send(step, is_last=not self._left[step]):
                del self._wanted[step], self._left[step]

    def flush(self) -> None:
        """At the end: what still waits."""
        for step in list(self._wanted):
            self._send(step, is_last=True)
        self._wanted.clear()

    def failed(self, step: int) -> None:
        """An exception ends the training in `step`."""
        for before in (2, 1, 0):
            self._wanted.pop(step - before, None)
            self._send(step - before, is_last=True, reason="before" if before else "failed")

    def _send(self, step: int, *, is_last: bool, reason: str = "") -> bool:
        """Whether nothing of `step` is left to send."""
        parts = tuple(self._parts.get(step, ()))
        if not is_last and not (parts and all(part.is_complete() for part in parts)):
            return False
        with self._lock:
            if not parts or step in self._sent:
                return True
            recent = sum(1 for each in self._sent if each > step - limits.BATCH_EVENT_STEPS)
            if recent >= limits.BATCH_EVENTS or self._count >= limits.BATCH_EVENTS_IN_ALL:
                self._drops.add("too_many_batches")
                return True
            self._sent.append(step)
            self._count += 1
        self._events.add(_details(parts, reason or self._wanted.get(step, "before")), step=step)
        return True


def _waits(given: Tensor) -> str:
    return f"a tensor on {given.device}, which would have to be waited for; pass it as the loader has it"


def _ids(given: Any, room: int) -> tuple[Any, int]:
    """A copy of the first of them, as many as there is `room` for, and how many there are. Raises `_Refused`."""
    room = max(0, room)
    if isinstance(given, Tensor):
        if given.dim() != 1 or given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
            raise _Refused(f"a tensor of shape {list(given.shape)} and {given.dtype}; 1-D of whole numbers is wanted")
        if not given.is_cpu:
            raise _Refused(_waits(given))
        return given[:room].clone(), given.numel()
    if isinstance(given, np.ndarray):
        if given.ndim != 1 or given.dtype.kind not in "iuUO":
            raise _Refused(f"an array of shape {list(given.shape)} and {given.dtype}; 1-D of whole numbers is wanted")
        given = given if given.dtype.kind in "UO" else given[:room].copy() if given.size > room else given.copy()
        if given.dtype.kind in "iu":
            return given, given.size
    elif isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise _Refused(f"a {type(given).__name__}; a list or 1-D tensor of whole numbers or strings is wanted")
    part = list(given[:room])
    if not set(map(type, part)) <= _PLAIN:
        part = [_id(each) for each in part]
    return part, len(given)


def _id(given: Any) -> int | str:
    if isinstance(given, str):
        return str(given)
    if isinstance(given, Tensor) and not given.is_cpu:
        raise _Refused(_waits(given))
    try:
        if not isinstance(given, (bool, np.bool_)) and not (isinstance(given, Tensor) and given.dtype == torch.bool):
            return operator.index(given)
    except TypeError:
        pass
    raise _Refused(f"one of them is a {type(given).__name__}; whole numbers or strings are wanted")


@torch.no_grad()
def _read_losses(part: _Part, given: Any) -> None:
    """Begin the copy of the first `limits.BATCH_LOSSES`, and say how many there are. Raises `_Refused`."""
    if isinstance(given, np.ndarray) and given.dtype.kind == "f":
        given = torch.from_numpy(given.copy())
    if not isinstance(given, Tensor):
        raise _Refused(f"a {type(given).__name__}; a 1-D tensor is wanted, one loss a row (reduction='none')")
    if given.dim() != 1 or not given.is_floating_point():
        raise _Refused(f"a tensor of shape {list(given.shape)} and {given.dtype}; 1-D is wanted, one loss a row")
    local = local_part(given.detach())
    if (why := why_unobservable(local)) is not None or is_being_captured(local):
        raise _Refused(why or "inside the capture of a CUDA graph")
    local = local[: limits.BATCH_LOSSES]
    part.loss_count = given.numel()
    if local.is_cpu:
        part.losses = local.to(torch.float32, copy=True)
        return
    host = torch.empty(local.shape, dtype=torch.float32, pin_memory=local.is_cuda)
    part.losses = host.copy_(local.float(), non_blocking=True)
    part.copied = new_event(local.device)
    if part.copied is not None:
        with torch.cuda.device(local.device) if local.is_cuda else torch.no_grad():
            part.copied.record()


def _details(parts: Sequence[_Part], reason: str) -> BatchRows:
    ids: list[int | str] = []
    largest: list[tuple[float, int | str]] = []
    known: list[NDArray[np.float32]] = []
    offset = 0
    for part in parts:
        own = [] if part.ids is None else [_sent_id(each) for each in _listed(part.ids)]
        if part.losses is not None and part.is_complete():
            losses = part.losses.numpy()
            known.append(losses)
            height = np.nan_to_num(losses, nan=np.inf)
            for at in np.argsort(-height, kind="stable")[: limits.BATCH_LARGEST].tolist():
                row = own[at] if at < len(own) else f"at {offset + at}" if part.count else offset + at
                largest.append((float(losses[at]), row))
        ids += own
        offset += max(part.count, part.loss_count)
    largest.sort(key=lambda each: -each[0] if np.isfinite(each[0]) else -np.inf)
    finite = np.concatenate(known) if known else np.zeros(0, np.float32)
    finite = finite[np.isfinite(finite)]
    return BatchRows(
        ids=tuple(ids), count=sum(each.count for each in parts), microbatches=len(parts), reason=reason,
        largest=tuple(RowLoss(row, _sent_loss(loss)) for loss, row in largest[: limits.BATCH_LARGEST]),
        median=float(np.median(finite)) if len(finite) else None, loss_count=sum(each.loss_count for each in parts),
    )  # fmt: skip


def _listed(ids: Any) -> list[Any]:
    known: list[Any] = ids if isinstance(ids, list) else ids.tolist()
    return known


def _sent_id(given: int | str) -> int | str:
    if isinstance(given, str):
        return sendable(given[: limits.BATCH_ID_CHARACTERS])
    return given if -(2**53) < given < 2**53 else str(given)[: limits.BATCH_ID_CHARACTERS]


def _sent_loss(loss: float) -> float | str:
    return loss if np.isfinite(loss) else "NaN" if np.isnan(loss) else "Inf" if loss > 0 else "-Inf"
