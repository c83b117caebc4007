"""The largest attention logit of each head, where a fused kernel computes them and no module returns them.

`scaled_dot_product_attention` saves the log-sum-exp of each query's logits for its backward. That is the largest logit
or at most ln(keys) more, and is read where autograd holds it as it is. Where there is none (the math kernel, inside
activation checkpointing, `flex_attention`) |q| |k| bounds each logit: the largest query's norm times the largest key's,
by head. That bound is recorded under a name that says so. Inside a compiled graph nothing is read.

They are recorded as outputs of the module whose forward attends, "layers.0.attn attention logits", an index a head;
what is recorded is `amax`, 0 where every logit is below 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.core.selection import Selection
from rangewatch.hooks.watched_function import Read, WatchedFunction, calling_module
from rangewatch.recording.eager import hidden_from_modes, is_traced_now
from rangewatch.recording.level import Recording, TimedHook
from rangewatch.recording.observer import Observer

LOGITS, BOUND = "attention logits", "attention logits bound"

_graph_task_id = torch._C._current_graph_task_id
_MODULE = "Value"  # as of other values that are watched inside a forward
_NODES = 3  # from the output, a slice of a padded one, say, to the attention itself
_SAVED = ("_raw_saved_logsumexp", "_raw_saved_log_sumexp")
_UNKNOWN = object()


class Attended(NamedTuple):
    """A call: `query` (batch, heads, queries, dim) and `key`, a float `mask` that is added, or None, and its output."""

    query: Any
    key: Any
    mask: Any
    scale: Any
    out: Any


class AttentionLogits:
    """Those of one attached model."""

    def __init__(
        self, observer: Observer, guard: Guard, selection: Selection, recording: Recording,
        fqns: WeakKeyDictionary[nn.Module, str],
    ) -> None:  # fmt: skip
        self._observer, self._selection, self._recording, self._fqns = observer, selection, recording, fqns
        self._numbers: dict[tuple[str, int], list[int]] = {}
        self.listener = TimedHook(guard, "attention logits", self._attended, observer.cost)
        for each in FUNCTIONS:
            each.listen(self.listener)

    def remove(self) -> None:
        """Listen no more."""
        for each in FUNCTIONS:
            each.forget(self.listener)

    def _attended(self, frame: FrameType, read: Read, args: Any, kwargs: Any, out: Any) -> None:
        observer = self._observer
        if not observer.is_active or observer.is_evaluating or _graph_task_id() != -1:
            return
        found = calling_module(frame, self._fqns)
        if found is None or not (found[0].training or torch.is_grad_enabled()) or is_traced_now():
            return
        fqn = found[1]
        if not self._selection.has(fqn) or "output" not in self._recording.wanted(fqn):
            return
        call: Attended = read(args, kwargs, out)
        with hidden_from_modes(call):  # selective checkpointing counts what it sees
            self._read(fqn, call)

    def _read(self, fqn: str, call: Attended) -> None:
        observer = self._observer
        query = call.query
        if not (isinstance(query, Tensor) and isinstance(call.key, Tensor) and query.dim() == call.key.dim() == 4):
            return
        if not query.numel() or not call.key.numel() or not (observer.can_read(query) and observer.can_read(call.key)):
            return
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            sums = log_sum_exp(call.out, query)
            values = largest(sums) if sums is not None else bound(call)
        name = f"{fqn} {LOGITS if sums is not None else BOUND}".strip()
        numbers = self._numbers.get((name, len(values)))
        if numbers is None:
            numbers = self._numbers[name, len(values)] = self._new(name, values, query)
        observer.read_amax(numbers, values, query.shape[0] * query.shape[2])

    def _new(self, name: str, values: Tensor, query: Tensor) -> list[int]:
        heads = min(len(values), limits.ATTENTION_HEADS)
        shown = query.detach()[:, 0, :, 0].float()  # what they have the shape and dtype of
        numbers = []
        for head in range(heads):
            number = self._observer.number(shown, name, "output", head, _MODULE)
            self._observer.passed(number)
            numbers.append(number)
        return numbers


def log_sum_exp(out: Any, query: Tensor) -> Tensor | None:
    """(batch, heads, queries) float32 that autograd holds of the attention; None where none is, or a hook packs it."""
    node = getattr(out, "grad_fn", None)
    for _ in range(_NODES):
        if node is None:
            return None
        for name in _SAVED:
            saved = getattr(node, name, None)
            # To unpack what activation checkpointing has packed would compute its forward a second time.
            if saved is not None and getattr(saved, "unpack_hook", _UNKNOWN) is None:
                sums: Tensor = saved.data.detach()
                batch, heads, queries = query.shape[:3]
                if sums.numel() < batch * heads * queries or sums.shape[:2] != query.shape[:2]:
                    return None
                return sums.reshape(batch, heads, -1)[:, :, :queries]  # one kernel fills up to 32 queries
        node = node.next_functions[0][0] if node.next_functions else None
    return None


def largest(sums: Tensor) -> Tensor:
    """(heads,) of (batch, heads, queries): the largest that is finite, at least 0."""
    return sums.float().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).amax(dim=(0, 2)).clamp_min(0.0)


def bound(call: Attended) -> Tensor:
    """(heads,) float32: no logit of the head is above it."""
    query, key = call.query.detach(), call.key.detach()
    scale = float(call.scale) if isinstance(call.scale, (int, float)) else 1 / math.sqrt(query.shape[-1])
    of_query, of_key = (
        each.float().square().sum(-1).nan_to_num(nan=0.0, posinf=0.0).amax(dim=(0, 2)).sqrt() for each in (query, key)
    )
    if len(of_key) != len(of_query):  # fewer heads of keys, each for several of queries
        of_key = of_key.repeat_interleave(len(of_query) // len(of_key))
    values = abs(scale) * of_query * of_key
    if isinstance(call.mask, Tensor) and call.mask.is_floating_point():
        values = values + call.mask.detach().float().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).amax().clamp_min(0.0)
    return values


def _of_sdpa(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Attended:
    given: dict[str, Any] = {**dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)), **kwargs}
    return Attended(given.get("query"), given.get("key"), given.get("attn_mask"), given.get("scale"), out)


def _of_flex(args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Attended:
    given: dict[str, Any] = {
        **dict(zip(("query", "key", "value", "score_mod", "block_mask", "scale"), args, strict=False)),
        **kwargs,
    }
    return Attended(given.get("query"), given.get("key"), None, given.get("scale"), None)


SDPA = WatchedFunction("torch.nn.functional", "scaled_dot_product_attention", _of_sdpa)

FUNCTIONS = (
    SDPA,
    WatchedFunction("torch.nn.attention.flex_attention", "flex_attention", _of_flex),
)
