"""Event `evaluation_mode`: a model that is trained while all of it is in `eval()`, as where nobody has called `train()`
again after an evaluation.

Then nothing is dropped out and BatchNorm goes by its running statistics, while weights are updated as before. Where
some modules alone are in `eval()` (frozen BatchNorm, a frozen backbone) that is meant, and a model without dropout and
running statistics does the same in both modes.

Event `frozen_in_train`: such a frozen part that comes into `train()` while the model is trained, as where
`model.train()` after an evaluation takes a teacher along. One that has been in `train()` from the
beginning is meant so.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import ref

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from rangewatch.recording.events import Events
from rangewatch.recording.tensor_names import clean_modules
from rangewatch.wire.events import EvaluationMode, FrozenInTrain

LASTING = 8
"""Steps in a row that are reported: one or two may be meant, as for a picture of what the model looks at."""

MOST_EVENTS = 32

MOST_PARTS, SEARCHED_EVERY = 64, 128
"""Frozen parts that are followed, and steps between two searches for them: layers are frozen and unfrozen."""


class TrainingMode:
    """Of one model. Called by the training thread; it reads no tensor."""

    def __init__(self, model: nn.Module, events: Events) -> None:
        self._model, self._events = ref(model), events
        self._in_train = self._in_eval = False
        """Whether a pass with gradients was made in the open step, in this mode."""
        self._was_trained = False
        self._frozen = FrozenParts(model, events)
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
            if has_backward:
                self._frozen.end_step()
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
        return _count(modules)


class _Part:
    """A frozen part, of class `nn.Module`, with one module of it that does something else in `eval()`."""

    def __init__(self, fqn: str, module: nn.Module, watched: nn.Module) -> None:
        self.fqn, self.module, self.watched = fqn, ref(module), ref(watched)
        self.eval_steps = self.train_steps = 0


class FrozenParts:
    """Those of one model. Called by the training thread; it reads no tensor."""

    def __init__(self, model: nn.Module, events: Events) -> None:
        self._model, self._events = ref(model), events
        self._parts: list[_Part] = []
        self._step_count = self._emitted = 0
        self._flipped: list[_Part] = []

    def end_step(self) -> None:
        """The open step, in which the model was trained in `train()`, is about to be closed."""
        if not self._step_count % SEARCHED_EVERY:
            self._search()
        self._step_count += 1
        for each in self._parts:
            watched = each.watched()
            if watched is None:
                continue
            if not watched.training:
                each.eval_steps, each.train_steps = each.eval_steps + 1, 0
            elif each.eval_steps >= LASTING:
                each.train_steps += 1
            else:
                each.eval_steps = 0
        new = [each for each in self._parts if each.train_steps == LASTING and _is_frozen(each.module())]
        if new and not self._flipped:
            self._flipped = new
            modules = [inner for each in new if (module := each.module()) is not None for inner in module.modules()]
            dropouts, norms = _count(modules)
            self._emit(FrozenInTrain(LASTING, new[0].fqn, len(new), dropouts, norms))
        elif self._flipped and all(not each.train_steps for each in self._flipped):
            self._emit(FrozenInTrain(0, self._flipped[0].fqn))
            self._flipped = []

    def _emit(self, known: FrozenInTrain) -> None:
        if self._emitted < MOST_EVENTS:
            self._emitted += 1
            self._events.add(known)

    def _search(self) -> None:
        model = self._model()
        known = {each.module(): each for each in self._parts}
        found = [] if model is None else list(_frozen_parts(clean_modules(model)))
        self._parts = [known.get(each.module(), each) for each in found[:MOST_PARTS]]
        self._flipped = [each for each in self._flipped if each in self._parts]


def _frozen_parts(modules: dict[str, nn.Module]) -> Iterator[_Part]:
    """The outermost modules with parameters none of which requires a gradient, and with dropout or running
    statistics; not the model itself."""
    taken: list[str] = []
    for fqn, module in modules.items():
        if not fqn or any(fqn.startswith(each) for each in taken) or not _is_frozen(module):
            continue
        taken.append(f"{fqn}.")
        watched = next((each for each in module.modules() if any(_count([each]))), None)
        if watched is not None:
            yield _Part(fqn, module, watched)


def _is_frozen(module: nn.Module | None) -> bool:
    if module is None:
        return False
    parameters = list(module.parameters())
    return bool(parameters) and not any(each.requires_grad for each in parameters)


def _count(modules: list[nn.Module]) -> tuple[int, int]:
    """Dropouts, and norms with running statistics."""
    dropouts = sum(isinstance(each, _DropoutNd) and each.p > 0 for each in modules)
    return dropouts, sum(isinstance(each, _NormBase) and each.running_mean is not None for each in modules)
