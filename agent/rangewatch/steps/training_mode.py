"""Event `evaluation_mode`: a model that is trained while all of it is in `eval()`, as where nobody has called `train()`
again after an evaluation.

Then nothing is dropped out and BatchNorm goes by its running statistics, while weights are updated as before. Where
some modules alone are in `eval()` (frozen BatchNorm, a frozen backbone) that is meant, and a model without dropout and
running statistics does the same in both modes.
"""

from __future__ import annotations

from weakref import ref

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from rangewatch.recording.events import Events
from rangewatch.wire.events import EvaluationMode

LASTING = 8
"""Steps in a row that are reported: one or two may be meant, as for a picture of what the model looks at."""

MOST_EVENTS = 32


class TrainingMode:
    """Of one model. Called by the training thread; it reads no tensor."""

    def __init__(self, model: nn.Module, events: Events) -> None:
        self._model, self._events = ref(model), events
        self._in_train = self._in_eval = False
        """Whether a pass with gradients was made in the open step, in this mode."""
        self._was_trained = False
        self._steps = self._emitted = self._backward_count = 0

    def passed(self, *, is_training: bool) -> None:
        """A forward with gradients begins."""
        if is_training:
            self._in_train = True
        else:
            self._in_eval = True

    def end_step(self, backward_count: int) -> None:
        """The open step is about to be closed. `backward_count`: of the process so far."""
        has_backward, self._backward_count = backward_count != self._backward_count, backward_count
        in_train, in_eval = self._in_train, self._in_eval
        self._in_train = self._in_eval = False
        if in_train:
            self._was_trained = True
            was_reported, self._steps = self._steps >= LASTING, 0
            if was_reported:
                self._emit(0, 0)
        elif in_eval and has_backward:
            self._steps += 1
            if self._steps == LASTING:
                dropouts, norms = self._idle()
                if dropouts + norms:
                    self._emit(dropouts, norms)
                else:
                    self._steps = 0

    def _emit(self, dropouts: int, norms: int) -> None:
        if self._emitted < MOST_EVENTS:
            self._emitted += 1
            self._events.add(EvaluationMode(self._steps, dropouts, norms, self._was_trained))

    def _idle(self) -> tuple[int, int]:
        """Dropouts, and norms with running statistics, where no module at all is in `train()`."""
        model = self._model()
        modules = [] if model is None else list(model.modules())
        if any(each.training for each in modules):
            return 0, 0
        dropouts = sum(isinstance(each, _DropoutNd) and each.p > 0 for each in modules)
        return dropouts, sum(isinstance(each, _NormBase) and each.running_mean is not None for each in modules)
