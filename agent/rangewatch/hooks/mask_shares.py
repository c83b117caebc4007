"""Series `mask_share`, `added_mask_share`, `attention_share` and `token_share`: how much the masks of a step leave, and
how much of what the model is given is no padding, by samples.

A mask that is turned around, or left out, makes no value large and none NaN: only the loss shows it. So of the step's
first forward in training the first input that is a mask is read (booleans, or a matrix of whole numbers that are all 0
or 1 and lies beside what has its shape), as the share of its elements that are 1: what is given alone masks nothing,
whatever it looks like. Where there is none, in host memory, the first matrix of floats that has held nothing but 0 and
what masks when it is added, as the share of what does not, whatever two values it holds since: what holds more is
something else that is given in its place. And of the step's first `scaled_dot_product_attention` the share of places
that its mask lets be read, 1 where it has none. Torch's Transformer layers call that; `nn.MultiheadAttention` does with
`need_weights=False` alone, and its own function is not wrapped: TorchScript could not compile it then. Where an
embedding of the model has a `padding_idx`, the share of the first matrix of ids that is something else is beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rangewatch.core.guard import Guard
from rangewatch.hooks.attention_logits import SDPA
from rangewatch.hooks.watched_function import Read, calling_module
from rangewatch.recording.eager import hidden_from_modes, is_traced_now
from rangewatch.recording.input_scale import ON_DEVICE, sampled
from rangewatch.recording.level import TimedHook
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import (
    BOOL,
    INTEGER,
    InputListener,
    Observer,
    StepReader,
    is_being_captured,
    is_freed,
    why_unobservable,
)
from rangewatch.recording.tensor_names import leaves

GIVEN, ADDED, ATTENDED, TOKENS = "mask_share", "added_mask_share", "attention_share", "token_share"

MASKED = -9_999.0
"""What is added to logits and is no higher masks them: -inf, the lowest number of a dtype, -1e9, or BERT's -10,000. A
bias by distance (ALiBi) is above it."""

MOST_WHOLE = 3
"""Matrices of whole numbers that are looked at: tokens are before their mask."""

FIRST_STEPS, SEARCHED_EVERY = 8, 32
"""First steps of a run, and steps between two, in which matrices of floats are looked at for one that is added."""

TOKEN_STEPS = 256
"""First steps of a run in which token ids are read at each step, and from then on at each 32nd: a mask is turned around
from the start, as a rule, and one reading takes 35 to 60 us in host memory."""

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_IDS = (torch.int32, torch.int64)
_READ = (None, BOOL, INTEGER)
_CAUSAL = 0.5
"""Where each place reads those before it, and of few places a little more."""

_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")

_graph_task_id = torch._C._current_graph_task_id
_NoTorchFunction = torch._C.DisableTorchFunctionSubclass


class MaskShares(StepReader, InputListener):
    """Those of one attached model. Called by the training thread."""

    def __init__(
        self, observer: Observer, guard: Guard, values: LoggedValues, of_inputs: list[InputListener],
        fqns: WeakKeyDictionary[nn.Module, str],
    ) -> None:  # fmt: skip
        self._observer, self._values, self._of_inputs, self._fqns = observer, values, of_inputs, fqns
        self._step = 0
        self._place: int | None = None
        """Of the mask that is added among the matrices of floats that the model is given."""
        self._has_attended = True
        self._padding: int | None = None
        self.listener = TimedHook(guard, "masks", self._attended, observer.cost)
        SDPA.listen(self.listener)

    def remove(self) -> None:
        """Listen no more."""
        SDPA.forget(self.listener)

    def begin_step(self, step: int) -> None:
        """`step` is open: look at its first forward, and at its first attention."""
        self._step, self._has_attended = step, False
        if self not in self._of_inputs:
            self._of_inputs.append(self)

    def inputs_given(self, values: Any) -> None:
        """The model is called with these, for the first time in the step."""
        self._of_inputs.remove(self)
        tensors = [each for each in leaves(values) if isinstance(each, Tensor) and not each.is_nested]
        booleans = [each for each in tensors if each.dtype is torch.bool and len(tensors) > 1]
        whole = [each for each in tensors if each.dtype in _WHOLE and each.dim() > 1 and _is_beside(each, tensors)]
        share: Tensor | float | None = None
        for each in (*booleans[:1], *whole[:MOST_WHOLE]):
            its = self._share(each, _of_ones)
            if not isinstance(its, Tensor):
                share = its if share is None else share
            elif isinstance(share, Tensor) and share.device == its.device:
                share = torch.where(share.isnan(), its, share)  # which of them is a mask is not known here
            else:
                share = its
            if isinstance(share, float) or each.dtype is torch.bool:
                break
        if share is not None:
            self._values.record(GIVEN, self._step, share)
        elif len(tensors) > 1:
            self._given_to_add([each for each in tensors if each.is_floating_point() and each.dim() > 1])
        self._given_tokens(tensors)

    def _given_tokens(self, tensors: list[Tensor]) -> None:
        if self._step >= TOKEN_STEPS and self._step % SEARCHED_EVERY:
            return
        if self._step < FIRST_STEPS or not self._step % SEARCHED_EVERY:
            embeddings = (each for each in list(self._fqns) if isinstance(each, nn.Embedding))
            paddings = (each.padding_idx for each in embeddings if each.padding_idx is not None)
            self._padding = next(paddings, None)
        padding = self._padding
        ids = next((each for each in tensors if each.dtype in _IDS and each.dim() > 1), None)
        if padding is None or ids is None:
            return
        share = self._share(ids, lambda part: (part != padding).float().mean(), is_mask=False)
        if share is not None:
            self._values.record(TOKENS, self._step, share)

    def _given_to_add(self, matrices: list[Tensor]) -> None:
        if self._place is None and (self._step < FIRST_STEPS or not self._step % SEARCHED_EVERY):
            places = (at for at, each in enumerate(matrices[:MOST_WHOLE]) if self._on_host(each, _is_added))
            self._place = next(places, None)
        if self._place is not None and self._place < len(matrices):
            share = self._on_host(matrices[self._place], _of_added)
            if share is not None and not math.isnan(share):
                self._values.record(ADDED, self._step, share)

    @torch.no_grad()
    def _on_host(self, mask: Tensor, of: Callable[[Tensor], Tensor]) -> float | None:
        if type(mask) is not Tensor or not mask.is_cpu or why_unobservable(mask) is not None:
            return None
        if is_freed(mask) or is_being_captured(mask) or mask.dtype.itemsize == 1:  # float8 has no comparison
            return None
        part = sampled(_one_of_alike(mask.detach()))
        return float(of(part)) if part is not None and part.numel() else None

    def _attended(self, frame: FrameType, _: Read, args: Any, kwargs: Any, out: Any) -> None:
        observer = self._observer
        if self._has_attended or not observer.is_active or observer.is_evaluating or _graph_task_id() != -1:
            return
        found = calling_module(frame, self._fqns)
        if found is None or not (found[0].training and torch.is_grad_enabled()) or is_traced_now():
            return
        self._has_attended = True
        given: dict[str, Any] = {**dict(zip(_SDPA, args, strict=False)), **kwargs}
        mask, without = given.get("attn_mask"), _CAUSAL if given.get("is_causal") else 1.0
        with _NoTorchFunction(), hidden_from_modes([mask]):  # selective checkpointing counts what it sees
            share = self._share(mask, _of_read) if isinstance(mask, Tensor) else without
            if share is not None:
                self._values.record(ATTENDED, self._step, share)

    @torch.no_grad()
    def _share(
        self, mask: Tensor, shares: Callable[[Tensor], Tensor], *, is_mask: bool = True
    ) -> Tensor | float | None:
        """None where it cannot be read now, or on a GPU is not."""
        if type(mask) is not Tensor or why_unobservable(mask) not in _READ:
            return None
        if is_freed(mask) or is_being_captured(mask):
            return None
        is_on_device = self._observer.is_on_device(mask)
        if is_on_device and self._step % ON_DEVICE:
            return None
        part = sampled(_one_of_alike(mask.detach()))
        if part is None or not part.numel() or (is_mask and not is_on_device and _is_of_tokens(part)):
            return None
        share = shares(part)
        if is_on_device:
            return share
        value = float(share)
        return None if math.isnan(value) else value


def _is_beside(mask: Tensor, tensors: list[Tensor]) -> bool:
    """Whether something else has its shape, or begins with it: boards and sets of 0 and 1 are what is learned from."""
    return any(each is not mask and each.shape[: mask.dim()] == mask.shape for each in tensors)


def _one_of_alike(mask: Tensor) -> Tensor:
    """Without what `expand` has repeated."""
    for dim in range(mask.dim() - 1, -1, -1):
        if mask.stride(dim) == 0 and mask.shape[dim] > 1:
            mask = mask.select(dim, 0)
    return mask


def _is_of_tokens(part: Tensor) -> bool:
    """Whether a few whole numbers show that they are no mask, in host memory: all of them cost four times as much."""
    return part.dtype in _WHOLE and int((part.select(0, 0) if part.dim() else part).max()) > 1


def _of_ones(part: Tensor) -> Tensor:
    """NaN where any element is neither 0 nor 1."""
    if part.dtype is torch.bool:
        return part.float().mean()
    ones = part == 1
    return torch.where(((part == 0) | ones).all(), ones.float().mean(), float("nan"))


def _is_added(part: Tensor) -> Tensor:
    """Whether it leaves its places or masks them when it is added, and masks some."""
    masked = part <= MASKED
    return ((part == 0) | masked).all() & masked.any()


def _of_added(part: Tensor) -> Tensor:
    """NaN where it has more than two values."""
    least, most = part.aminmax()
    return torch.where(((part == least) | (part == most)).all(), _of_read(part), float("nan"))


def _of_read(part: Tensor) -> Tensor:
    return (part if part.dtype is torch.bool else part > MASKED).float().mean()
