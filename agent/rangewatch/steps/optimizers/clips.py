"""By which norm gradients were clipped, where the loop uses torch's own function, and whether it was given scaled ones.

What stands between a backward and its optimizer's step is seen nowhere else: after a clip all gradients are of one
size, whatever made them large. The norm is computed by the clip anyway; it is recorded as the series `clipped_norm`
where it is, and no device is waited for.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

from rangewatch.core.guard import Guarded
from rangewatch.core.patched_function import PatchedFunction
from rangewatch.recording.observer import StepReader
from rangewatch.recording.parallel.gradient_sums import GradientSums
from rangewatch.steps.interface import StepRecorder
from rangewatch.steps.loss_scale import LossScaling
from rangewatch.wire.events import Clipping

SERIES = "clipped_norm"

LASTING = 16
"""Steps in a row in which scaled gradients were clipped that are reported: a scaler may be new, or at rest."""

FAR = 100.0
"""Times the limit that a norm must be for the clip to leave next to nothing of it; of norms in host memory."""

MOST_EVENTS = 16

_CLIPS = ((clip_grad, "_clip_grads_with_norm_"), (nn.utils, "clip_grads_with_norm_"))
_NORMS = ((clip_grad, "_get_total_norm"), (nn.utils, "get_total_norm"))
"""What `clip_grad_norm_` calls, however a script has imported that, and what loops call that compute the norm apart;
torch before 2.6 has none."""

_is_compiling = torch.compiler.is_dynamo_compiling


class Clips(StepReader):
    """Those of one model's gradients. Called by the training thread."""

    def __init__(
        self, agent: StepRecorder, model: nn.Module, scaling: LossScaling, sums: GradientSums | None,
        undo: contextlib.ExitStack,
    ) -> None:  # fmt: skip
        self._agent, self._scaling, self._sums = agent, scaling, sums
        self._known = frozenset(id(each) for each in model.parameters())
        self._model = ref(model)
        self._norm: float | None = None
        self._has_clipped = self._is_early = False
        self._early_steps = self._far_steps = 0
        """Steps in a row in which all clips came before the first backward, or left next to nothing."""
        self._max_norm, self._is_scaled, self._is_odd = 0.0, False, False
        self._steps = self._emitted = 0
        _Function.listen(listener := Guarded(agent.guard, "clipping", self._clipped))
        undo.callback(_Function.forget, listener)

    def end_step(self) -> None:
        """The open step is about to be closed."""
        norm, self._norm, has_clipped, self._has_clipped = self._norm, None, self._has_clipped, False
        # Where the loop says when a step ends, that of the last backward's gradients may come first in it.
        is_early, self._is_early = self._is_early and self._scaling.boundary.ends != "handle", False
        if not has_clipped:
            return
        was_far = self._far_steps >= LASTING
        is_far = norm is not None and 0 < FAR * self._max_norm < norm < math.inf
        self._far_steps = self._far_steps + 1 if is_far else 0
        was_early = self._early_steps >= LASTING
        self._early_steps = self._early_steps + 1 if is_early and self._agent.phases.has_backward else 0
        if norm is not None:
            self._agent.values.record(SERIES, self._agent.step, norm)
        was_reported, self._steps = self._steps >= LASTING, self._steps + 1 if self._is_scaled else 0
        was_odd, self._is_odd = self._is_odd, self._max_norm <= 0
        is_other = was_reported != (self._steps >= LASTING) or was_odd != self._is_odd
        is_other = is_other or was_early != (self._early_steps >= LASTING)
        is_other = is_other or was_far != (self._far_steps >= LASTING)
        if is_other and self._emitted < MOST_EVENTS:
            self._emitted += 1
            self._agent.events.add(
                Clipping(self._max_norm, self._is_scaled, self._steps, self._early_steps, self._far_steps)
            )

    def _clipped(self, parameters: Any, max_norm: Any, total_norm: Any, is_of_squares: bool) -> None:
        if not self._agent.observer.is_active or not self._is_mine(parameters):
            return
        self._is_early = not self._agent.phases.has_backward
        if self._sums is not None:
            self._sums.clipped([parameters] if isinstance(parameters, Tensor) else parameters, is_known=is_of_squares)
        if not isinstance(total_norm, Tensor) or hasattr(total_norm, "to_local") or isinstance(max_norm, Tensor):
            return  # of a DTensor this rank has a part alone
        self._max_norm, self._is_scaled, self._has_clipped = float(max_norm), self._scaling.is_scaled_now(), True
        value = total_norm.detach()
        if self._agent.observer.is_on_device(value):
            self._agent.values.record(SERIES, self._agent.step, value)
        else:  # of several clips in a step, as of several optimizers, the largest
            self._norm = float(value) if self._norm is None else max(float(value), self._norm)

    def _is_mine(self, parameters: Iterable[Any]) -> bool:
        """By the first parameter; one that came after attach is looked for in the model."""
        first = parameters if isinstance(parameters, Tensor) else next(iter(parameters), None)
        if id(first) in self._known:
            return True
        model = self._model()
        if first is None or model is None or all(each is not first for each in model.parameters()):
            return False
        self._known |= {id(first)}
        return True


class _Function:
    """Torch's functions, wrapped once a process while anybody listens."""

    _listeners: tuple[Guarded, ...] = ()
    """Replaced and never changed: any thread may clip."""
    _clips = tuple(PatchedFunction(*each) for each in _CLIPS)
    _norms = tuple(PatchedFunction(*each) for each in _NORMS)
    _other: Any = None
    """The last norm that is not that of squares."""
    _lock = threading.Lock()

    @classmethod
    def listen(cls, listener: Guarded) -> None:
        with cls._lock:
            cls._listeners = (*cls._listeners, listener)
            for each in cls._clips:
                each.install(cls._around)
            for each in cls._norms:
                each.install(cls._around_norm)

    @classmethod
    def forget(cls, listener: Guarded) -> None:
        with cls._lock:
            cls._listeners = tuple(each for each in cls._listeners if each is not listener)
            if not cls._listeners:
                for each in (*cls._clips, *cls._norms):
                    each.remove()

    @classmethod
    def _around(cls, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def clipped(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
            if not _is_compiling():  # inside a graph nothing of ours is called
                if not isinstance(parameters, (Tensor, Sequence)):
                    parameters = list(parameters)  # a generator gives them once
                is_of_squares = cls._other is None or cls._other() is not total_norm
                for each in cls._listeners:
                    each(parameters, max_norm, total_norm, is_of_squares)
            return own(parameters, max_norm, total_norm, *args, **kwargs)

        return clipped

    @classmethod
    def _around_norm(cls, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def norm_of(tensors: Any, norm_type: Any = 2.0, *args: Any, **kwargs: Any) -> Any:
            norm = own(tensors, norm_type, *args, **kwargs)
            if not _is_compiling():
                is_other = isinstance(norm, Tensor) and not (isinstance(norm_type, (int, float)) and norm_type == 2)
                cls._other = ref(norm) if is_other else None
            return norm

        return norm_of
