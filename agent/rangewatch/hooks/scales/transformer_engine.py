"""TransformerEngine's modules, by the state that they keep: `fp8_meta` and `quantizers`, as of releases 1.x and 2.x.

Delayed scaling keeps a scale and an amax history for each operand: right after a forward, still inside `fp8_autocast`,
these are the scale that was used and, first in the history, the magnitude that it was used for. Those of a backward are
looked at when the step ends: the history has moved on by one then, and the scale is that of the forward. Current
scaling keeps the last scale and amax. Of block scaling modules keep only weights, see `engine_weights`: of all else
nothing is known.

Written from its sources and tried with doubles of its modules: it does not run on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from rangewatch.core import limits
from rangewatch.core.selection import Selection
from rangewatch.hooks.scales import engine_weights
from rangewatch.hooks.scales.operand import GRAD_OUTPUT, INPUT, WEIGHT, Operand, class_of
from rangewatch.hooks.scales.reads import ScaleReads, State
from rangewatch.recording.level import Recording
from rangewatch.wire.events import ScaledOperand

SOURCE = "TransformerEngine"
NO_STATE = "scales: TransformerEngine keeps none of this recipe's block scales of inputs and gradients"
NOT_KEPT = "scales: not where TransformerEngine's releases so far keep them"

_CLASSES = {"Linear", "LayerNormLinear", "LayerNormMLP", "GroupedLinear"}
_BASE = "TransformerEngineBaseModule"
_RECIPES = {
    "DelayedScaling": "delayed", "Float8CurrentScaling": "current", "MXFP8BlockScaling": "mxfp8",
    "Float8BlockScaling": "block", "NVFP4BlockScaling": "nvfp4",
}  # fmt: skip


class Slot(NamedTuple):
    """Where a module keeps an operand of one of its products."""

    kind: str
    gemm: int
    at: int


class StateCopy(NamedTuple):
    """Copies of a direction's state, of the moment when they were taken."""

    scale: Tensor
    history: Tensor


class EngineModule:
    """One module. Called after each of its forwards."""

    def __init__(self, engine: EngineReads, module: nn.Module) -> None:
        self._engine, self._module = engine, ref(module)
        self.backward: Tensor | None = None
        """A copy of the scales of its gradients, as they were at its last forward; taken by `end_step`."""

    def read(self, leaves: Sequence[Any], numbers: Sequence[int]) -> None:
        """A forward is over."""
        module = self._module()
        if module is not None:
            self._engine.after_forward(self, module)

    def compiled(self) -> None:
        """Nothing of it is seen there."""


class EngineReads:
    """Those of one attached model."""

    def __init__(
        self, reads: ScaleReads, selection: Selection, recording: Recording, fqns: WeakKeyDictionary[nn.Module, str]
    ) -> None:
        self._reads, self._selection, self._recording, self._fqns = reads, selection, recording, fqns
        self._modules: WeakKeyDictionary[nn.Module, EngineModule] = WeakKeyDictionary()
        self._states: list[State] = []

    def of(self, module: nn.Module) -> EngineModule | None:
        """What reads the module, where it is one of TransformerEngine's."""
        names = [each.__name__ for each in type(module).__mro__]
        if _BASE not in names or _CLASSES.isdisjoint(names):
            return None
        reader = self._modules.get(module)
        if reader is None:
            reader = self._modules[module] = EngineModule(self, module)
        return reader

    def after_forward(self, reader: EngineModule, module: nn.Module) -> None:
        """Take what the module keeps of its forward's casts; copies on its device, a few bytes each."""
        if not self._reads.schedule.is_due:
            return
        meta: Any = getattr(module, "fp8_meta", None)
        if not getattr(module, "fp8", False) or not isinstance(meta, dict):
            return
        began_ns = time.thread_time_ns()
        fqn = self._fqns.get(module)
        if fqn is None or not self._selection.has(fqn):
            return
        recipe = meta.get("recipe")
        kind = _kind_of(recipe)
        if kind == "delayed":
            forward, backward = _copied(meta.get("scaling_fwd")), meta.get("scaling_bwd")
            if forward is None:
                self._unknown(fqn, module, recipe, NOT_KEPT)
                return
            self._take(fqn, module, forward, _slots(module, meta, forward=True), is_rolled=False)
            scale = getattr(backward, "scale", None)
            reader.backward = scale.detach().clone() if isinstance(scale, Tensor) and torch.is_grad_enabled() else None
            self._reads.schedule.add(began_ns)
        elif kind == "current":
            self._take_current(fqn, module, forward=True)
            reader.backward = torch.zeros(0) if torch.is_grad_enabled() else None
            self._reads.schedule.add(began_ns)
        elif kind:
            weights = list(_slots(module, meta, forward=True))
            for slot in weights:
                operand = self._operand(fqn, module, slot)
                about = _about(recipe, module, forward=True)
                codes = engine_weights.read(module, slot.gemm, kind) if slot.kind == WEIGHT else None
                if codes is None:
                    self._reads.note_unknown(operand, about, NO_STATE)
                else:
                    self._reads.read_codes(operand, *codes[:2], codes[2])
        else:
            self._unknown(fqn, module, recipe, NOT_KEPT)

    def end_step(self) -> None:
        """Take what the backwards have left, and read all of it."""
        if not self._reads.schedule.is_due:
            return
        began_ns = time.thread_time_ns()
        for module, reader in list(self._modules.items()):
            scale, reader.backward = reader.backward, None
            fqn = self._fqns.get(module)
            if scale is None or fqn is None or "grad_output" not in self._recording.wanted(fqn):
                continue
            meta: Any = getattr(module, "fp8_meta", None)
            if _kind_of(meta.get("recipe")) == "current":
                self._take_current(fqn, module, forward=False)
                continue
            copied = _copied(meta.get("scaling_bwd"))
            if copied is not None and copied.scale.shape == scale.shape:
                slots = _slots(module, meta, forward=False)
                self._take(fqn, module, copied._replace(scale=scale), slots, is_rolled=True)
        by_device: dict[torch.device, list[State]] = {}
        for state in self._states:
            by_device.setdefault(state.amax.device, []).append(state)
        self._states.clear()
        if by_device:
            self._reads.schedule.add(began_ns)
        for states in by_device.values():
            self._reads.read_states(states)

    def _take(self, fqn: str, module: nn.Module, copied: StateCopy, slots: Iterator[Slot], *, is_rolled: bool) -> None:
        meta: Any = module.fp8_meta
        recipe = meta.get("recipe")
        history = copied.history
        if is_rolled and len(history) > 1:  # with the update the newest went to the end, and the first became 0
            history = torch.where(history[:1] == 0, history.roll(1, 0), history)
        ages = _ages(history, getattr(recipe, "amax_compute_algo", "max"))
        for slot in slots:
            if slot.at < copied.scale.numel() and len(self._states) < limits.SCALED_OPERANDS:
                part = slice(slot.at, slot.at + 1)
                about = _about(recipe, module, forward=slot.kind != GRAD_OUTPUT, history=len(history))
                if not about.format:
                    continue
                self._states.append(
                    State(self._operand(fqn, module, slot), history[0, part], copied.scale[part], ages[part], about)
                )

    def _take_current(self, fqn: str, module: nn.Module, *, forward: bool) -> None:
        quantizers: Any = getattr(module, "quantizers", {}).get("scaling_fwd" if forward else "scaling_bwd", ())
        meta: Any = module.fp8_meta
        for slot in _slots(module, meta, forward=forward):
            quantizer = quantizers[slot.at] if slot.at < len(quantizers) else None
            amax, scale = getattr(quantizer, "amax", None), getattr(quantizer, "scale", None)
            about = _about(meta.get("recipe"), module, forward=forward, dtype=getattr(quantizer, "dtype", None))
            operand = self._operand(fqn, module, slot)
            if not isinstance(amax, Tensor) or not isinstance(scale, Tensor) or not about.format:
                self._reads.note_unknown(operand, about, NOT_KEPT)
            elif len(self._states) < limits.SCALED_OPERANDS:
                copies = [each.detach().reshape(-1)[:1].float().clone() for each in (amax, scale)]
                self._states.append(State(operand, copies[0], copies[1], None, about))

    def _unknown(self, fqn: str, module: nn.Module, recipe: Any, why_not: str) -> None:
        about = ScaledOperand("", "", source=SOURCE, recipe=type(recipe).__name__)
        self._reads.note_unknown(Operand(fqn, INPUT, 0, class_of(module)), about, why_not)

    def _operand(self, fqn: str, module: nn.Module, slot: Slot) -> Operand:
        name = f"{fqn} GEMM {slot.gemm + 1}" if slot.gemm else fqn  # of a module that multiplies more than once
        return Operand(name, slot.kind, 0, class_of(module))


def _kind_of(recipe: Any) -> str:
    return next((_RECIPES[each.__name__] for each in type(recipe).__mro__ if each.__name__ in _RECIPES), "")


def _copied(state: Any) -> StateCopy | None:
    """Copies of a direction's scale and amax history; None where it has none."""
    scale, history = getattr(state, "scale", None), getattr(state, "amax_history", None)
    if not isinstance(scale, Tensor) or not isinstance(history, Tensor) or history.dim() != 2 or not len(history):
        return None
    return StateCopy(scale.detach().clone(), history.detach().clone())


def _ages(history: Tensor, algorithm: Any) -> Tensor:
    """(n,) which entry before the newest the scale is made of, 1 the one just before; 0 where there is none yet."""
    before = history[1:].flip(0)  # the update rolls them: the last is the newest but one
    if not len(before):
        return torch.zeros(history.shape[1], device=history.device)
    if algorithm == "most_recent":
        return (before.amax(0) > 0).float()
    largest, at = before.max(0)
    return torch.where(largest > 0, at + 1, 0).float()


def _slots(module: nn.Module, meta: Any, *, forward: bool) -> Iterator[Slot]:
    """Input, weight and output of each product follow one another, and in the backward two of each; a module with
    offsets of its own says where.
    """
    count = int(meta.get("num_gemms", 1))
    offsets: Any = getattr(module, "_offsets", None)
    per: Any = getattr(module, "_num_fp8_tensors_per_gemm", None)
    for gemm in range(count):
        if isinstance(offsets, dict):
            stride = per["fwd" if forward else "bwd"] if isinstance(per, dict) else 1
            places = {INPUT: "input", WEIGHT: "weight"} if forward else {GRAD_OUTPUT: "grad_output"}
            for kind, name in places.items():
                yield Slot(kind, gemm, offsets.get(name, 0) + gemm * stride)
        elif forward:
            yield Slot(INPUT, gemm, 3 * gemm)
            yield Slot(WEIGHT, gemm, 3 * gemm + 1)
        else:
            yield Slot(GRAD_OUTPUT, gemm, 2 * gemm)


def _about(
    recipe: Any, module: nn.Module, *, forward: bool, history: int = 0, dtype: Any = None
) -> ScaledOperand:  # fmt: skip
    kind = _kind_of(recipe)
    granularity = {"mxfp8": "block 1x32", "nvfp4": "block 1x16", "block": "block"}.get(kind, "tensor")
    scale_format = {"mxfp8": "e8m0", "nvfp4": "e4m3"}.get(kind, "float32")
    return ScaledOperand(
        "", "", 0, engine_weights.format_of(dtype) or _format(recipe, kind, forward=forward), granularity,
        scale_format, SOURCE, type(recipe).__name__, history, float(getattr(recipe, "margin", 0) or 0),
    )  # fmt: skip


def _format(recipe: Any, kind: str, *, forward: bool) -> str:
    """By the recipe's `fp8_format`: HYBRID is E4M3 in the forward and E5M2 in the backward."""
    if kind == "nvfp4":
        return "E2M1"
    name = getattr(getattr(recipe, "fp8_format", None), "name", "")
    if name == "HYBRID":
        return "E4M3" if forward else "E5M2"
    return name if name in ("E4M3", "E5M2") else ""
