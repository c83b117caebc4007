"""Which forwards of the model are evaluation, sampling or a rollout: those that no backward follows.

Such a pass is kept apart: nothing of it is read into the step beside which it runs. The step has their number
(`eval_passes`) and how many elements of what they returned were NaN or Inf (`eval_nonfinite`). A pass in `train()`
moves the running statistics of norms, as no backward has to follow for that: after such a step `bad_norms` has how many
hold NaN or Inf.

A pass is known by how the outermost module is called. Without gradients it is none of training, but where the whole
of it is checkpointed, or a training that has ended a step has no backward at all. Nor is that by which a stage of a
pipeline learns its shapes. In `eval()` with gradients it is none
where the module has been trained in `train()`, unless a backward has followed from such passes alone: who fine-tunes
in `eval()` does that.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import checkpoint

from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import Observer, is_being_captured, local_part, why_unobservable
from rangewatch.recording.phase_times import BACKWARD
from rangewatch.recording.tensor_names import leaves
from rangewatch.statistics import reduce
from rangewatch.steps.evaluation.places import EvaluationPlaces
from rangewatch.steps.evaluation.training_mode import TrainingMode, statistics_of, tracking_norms
from rangewatch.steps.phase_clock import PhaseClock

READ_PASSES = 16
"""Passes a step whose result is read: a text is sampled token by token."""

NORMS_EVERY = 16
"""Steps from one reading of running statistics to the next, where there is such a pass in each, as of a generator that
makes pictures for its critic."""

READ_TENSORS = 4
"""Tensors of a result that are read."""

_FRAMES = 64
_graph_task_id = torch._C._current_graph_task_id
_tracing_state = torch._C._get_tracing_state
_CHECKPOINTED: CodeType | None = getattr(
    getattr(getattr(checkpoint, "CheckpointFunction", None), "forward", None), "__code__", None
)


class Passes:
    """Called where a forward of the model begins and ends: sets `observer.is_evaluating` from the one to the other."""

    def __init__(
        self, observer: Observer, clock: PhaseClock, values: LoggedValues, mode: TrainingMode, places: EvaluationPlaces
    ) -> None:
        self._observer, self._clock, self._values, self._mode = observer, clock, values, mode
        self._depth = 0
        self._trained: set[int] = set()
        """Modules that were called in `train()` with gradients, by id."""
        self._trained_in_eval: set[int] = set()
        """Those from whose passes in `eval()` alone a backward went."""
        self._since_backward: tuple[set[int], set[int]] = set(), set()
        """Called with gradients since the last backward began: in `train()`, in `eval()`."""
        self._backward_count = 0
        self._has_step_ended = False
        self._count = self._nonfinite = 0
        self._on_device: Tensor | None = None
        self._norms: WeakKeyDictionary[nn.Module, list[ref[_NormBase]]] = WeakKeyDictionary()
        """Those with running statistics, of modules that were called in `train()` without a backward."""
        self._norms_due = 0
        self._moved: ref[nn.Module] | None = None
        """The one that was so in the open step."""
        self._places = places

    def begin(self, module: nn.Module | None, *, is_training: bool, has_grad: bool) -> bool:
        """A module is called (None: one that is compiled). Whether this is the outermost call, and of training."""
        self._depth += 1
        if self._depth > 1:
            return False
        if _graph_task_id() == -1:  # inside a backward a forward is recomputed
            self._observer.is_evaluating = self._is_evaluation(id(module), module, is_training, has_grad)
            if has_grad:
                self._mode.passed(is_training=is_training)
            elif module is not None:
                if is_training and self._observer.is_evaluating:
                    self._moved = ref(module)
                if not (is_training and _is_within(_CHECKPOINTED)):
                    self._places.passed(module, is_training=is_training)
        return not self._observer.is_evaluating

    def end(self, result: Any = None) -> None:
        """It has returned `result`, or raised."""
        self._depth = max(0, self._depth - 1)
        if self._depth or not self._observer.is_evaluating:
            return
        self._observer.is_evaluating = False
        self._count += 1
        if self._count <= READ_PASSES and _tracing_state() is None:
            self._read(result)

    def end_step(self, step: int) -> None:
        """The open step, `step`, is about to be closed."""
        self._has_step_ended, self._depth = True, 0
        self._mode.end_step(step, self._clock.backward_count)
        self._places.end_step(step)
        self._observer.is_evaluating = False
        count, self._count = self._count, 0
        nonfinite, self._nonfinite = self._nonfinite, 0
        on_device, self._on_device = self._on_device, None
        if count:
            self._values.record("eval_passes", step, count)
            self._values.record("eval_nonfinite", step, nonfinite if on_device is None else on_device + nonfinite)
        moved, self._moved = None if self._moved is None else self._moved(), None
        is_due = moved is not None and (nonfinite > 0 or step >= self._norms_due)
        if moved is not None and is_due and (bad := self._bad_norms(moved)) is not None:
            self._norms_due = step + NORMS_EVERY
            self._values.record("bad_norms", step, bad)

    def _is_evaluation(self, key: int, module: nn.Module | None, is_training: bool, has_grad: bool) -> bool:
        in_train, in_eval = self._since_backward
        if self._clock.backward_count != self._backward_count:
            self._backward_count = self._clock.backward_count
            if not in_train:
                self._trained_in_eval |= in_eval
            in_train.clear()
            in_eval.clear()
        if not has_grad:
            has_none = self._has_step_ended and BACKWARD not in self._clock.seen
            return not is_training or not (has_none or (module is not None and _is_within(_CHECKPOINTED)))
        if not self._has_step_ended and _is_within(_inference_of_stages()):
            return True  # on memory that nobody has written
        (in_train if is_training else in_eval).add(key)
        if is_training:
            self._trained.add(key)
            return False
        return key in self._trained and key not in self._trained_in_eval

    @torch.no_grad()
    def _bad_norms(self, module: nn.Module) -> Tensor | float | None:
        """How many norms' running statistics hold NaN or Inf; None where there are none that can be read."""
        norms = self._norms.get(module)
        if norms is None:
            norms = self._norms[module] = [ref(each) for each in tracking_norms(module)]
        statistics = statistics_of(norm for each in norms if (norm := each()) is not None and norm.training)
        if not statistics:
            return None
        # Of finite ones the sum is finite: they are means and variances of what is far from the limit.
        sums = torch.stack([each.sum(dtype=torch.float32) for each in statistics]).view(-1, 2).sum(1)
        count = sums.numel() - sums.isfinite().sum()
        return count if self._observer.is_on_device(count) else float(count)

    @torch.no_grad()
    def _read(self, result: Any) -> None:
        read = 0
        for leaf in leaves(result):
            local = local_part(leaf) if isinstance(leaf, Tensor) else None
            if local is None or why_unobservable(local) is not None or is_being_captured(local):
                continue
            if self._observer.is_on_device(local):
                count = local.numel() - local.isfinite().sum()
                self._on_device = count if self._on_device is None else self._on_device + count
            elif not reduce.amax_of_blocks(local) < float("inf"):
                self._nonfinite += sum(reduce.count_nonfinite(local)[1:])
            read += 1
            if read == READ_TENSORS:
                break


def _is_within(code: CodeType | None) -> bool:
    """Whether this is called in what that code runs: for `_CHECKPOINTED`, what a reentrant checkpoint runs without
    gradients, to run it again with them."""
    frame: FrameType | None = sys._getframe(1) if code is not None else None
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def _inference_of_stages() -> CodeType | None:
    """Where a stage of a pipeline learns the shapes of what it gives, before its first step, by a forward and a
    backward of its own (torch 2.13; older ones do that without gradients)."""
    stage = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "PipelineStage", None)
    return getattr(getattr(stage, "_forward_metadata_inference", None), "__code__", None)
