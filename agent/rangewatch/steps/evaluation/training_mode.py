"""Event `evaluation_mode`: a model that is trained while all of it is in `eval()`, as where nobody has called `train()`
again after an evaluation.

Then nothing is dropped out and BatchNorm goes by its running statistics, while weights are updated as before. Where
some modules alone are in `eval()` (frozen BatchNorm, a frozen backbone) that is meant, and a model without dropout and
running statistics does the same in both modes. Unless norms are so from the start on, and nothing has ever trained
their statistics: a mean of 0 and a variance of 1 normalise nothing. Series `untrained_norms` says so once: how many
there are, or 0.

Event `frozen_in_train`: such a frozen part that comes into `train()` while the model is trained, as where
`model.train()` after an evaluation takes a teacher along. One that has been in `train()` from the
beginning is meant so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from rangewatch.recording.events import Events
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import is_being_captured, why_unobservable
from rangewatch.recording.tensor_names import clean_modules, is_wrapped
from rangewatch.wire.events import EvaluationMode, FrozenInTrain

EARLY, LASTING = 2, 8
"""Steps in a row that are reported: fewer than eight may be meant, as for a picture of what the model looks at, but may
explain what happens at once, where the model was trained in `train()` before."""

UNTRAINED, MOST_NORMS = "untrained_norms", 256
"""Series; and norms of a model whose running statistics are read, some 10 us each."""

MOST_EVENTS, MOST_EARLY = 32, 16
"""And how many of these so early: who trains a step or two in `eval()` now and then still hears of a lasting spell."""

MOST_PARTS, SEARCHED_EVERY, MODULES_A_STEP = 64, 128, 512
"""Frozen parts that are followed, steps from one search for them to the next (layers are frozen and unfrozen), and
modules that are searched in one step: 1 ms."""


class TrainingMode:
    """Of one model. Called by the training thread; it waits for no device."""

    def __init__(self, model: nn.Module, events: Events, values: LoggedValues) -> None:
        self._model, self._events, self._values = ref(model), events, values
        self._trained_steps = 0
        self._in_train = self._in_eval = False
        """Whether a pass with gradients was made in the open step, in this mode."""
        self._was_trained = self._is_reported = False
        self._frozen = FrozenParts(model, events)
        self._steps = self._emitted = self._backward_count = 0

    def passed(self, *, is_training: bool) -> None:
        """A forward with gradients begins."""
        if is_training:
            self._in_train = True
        else:
            self._in_eval = True

    def end_step(self, step: int, backward_count: int) -> None:
        """The open step, `step`, is about to be closed. `backward_count`: of the process so far."""
        has_backward, self._backward_count = backward_count != self._backward_count, backward_count
        in_train, in_eval = self._in_train, self._in_eval
        self._in_train = self._in_eval = False
        if in_train:
            self._was_trained = True
            if has_backward:
                self._frozen.end_step()
                self._trained_steps += 1
                if self._trained_steps == LASTING and (untrained := _untrained_norms(self._model())) is not None:
                    self._values.record(UNTRAINED, step, untrained)
            self._steps = 0
            if self._is_reported:
                self._is_reported = False
                self._emit(0, 0)
        elif in_eval and has_backward:
            self._steps += 1
            is_early = self._steps == EARLY and self._was_trained and self._emitted < MOST_EARLY
            if self._steps == LASTING or is_early:
                dropouts, norms, where = self._idle()
                if dropouts + norms:
                    self._is_reported = True
                    self._emit(dropouts, norms, where)
                elif self._steps == LASTING:
                    self._steps = 0

    def _emit(self, dropouts: int, norms: int, where: str = "") -> None:
        if self._emitted < MOST_EVENTS:
            self._emitted += 1
            self._events.add(EvaluationMode(self._steps, dropouts, norms, self._was_trained, where))

    def _idle(self) -> tuple[int, int, str]:
        """Dropouts, and norms with running statistics, where no module at all is in `train()`, and the part of the
        model that has all of those that are trained. Norms that are frozen are meant to be so: those of a backbone
        below a head that is trained alone.
        """
        model = self._model()
        modules = [] if model is None else list(model.modules())
        if model is None or any(each.training for each in modules):
            return 0, 0, ""
        norms = _norms_of(model, lambda each: each.requires_grad)
        return _count(modules)[0], len(norms), _part_of(model, norms)


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
        self._step_count = self._next_search = self._emitted = 0
        self._search: Search | None = None
        self._flipped: list[_Part] = []

    def end_step(self) -> None:
        """The open step, in which the model was trained in `train()`, is about to be closed."""
        model = self._model()
        if self._search is None and model is not None and self._step_count >= self._next_search:
            self._search, self._next_search = Search(model), self._step_count + SEARCHED_EVERY
        if self._search is not None and (parts := self._search.proceed()) is not None:
            self._search = None
            self._follow(parts)
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
        elif self._flipped:
            is_due = not self._step_count % LASTING  # of a large part it takes long
            still = [each for each in self._flipped if each.train_steps]
            self._close([each for each in still if not is_due or _is_frozen(each.module())])

    def _emit(self, known: FrozenInTrain) -> None:
        if self._emitted < MOST_EVENTS:
            self._emitted += 1
            self._events.add(known)

    def _follow(self, parts: list[_Part]) -> None:
        known = {each.module(): each for each in self._parts}
        self._parts = [known.get(each.module(), each) for each in parts]
        if self._flipped:
            self._close([each for each in self._flipped if each in self._parts])

    def _close(self, still: list[_Part]) -> None:
        """`still`: those of the parts in `train()` that are frozen and in it."""
        if not still:
            self._emit(FrozenInTrain(0, self._flipped[0].fqn))
        self._flipped = still


class _Module:
    """One of a search, with what is known of it and the modules in it."""

    __slots__ = ("fqn", "has_parameters", "is_trainable", "module", "parent")

    def __init__(self, fqn: str, module: ref[nn.Module], parent: _Module | None) -> None:
        self.fqn, self.module, self.parent = fqn, module, parent
        self.has_parameters = self.is_trainable = False


class Search:
    """For the outermost modules with parameters none of which requires a gradient, and with dropout or running
    statistics; not the model itself. Each module is read once, some in each step; between two none is kept alive.
    """

    def __init__(self, model: nn.Module) -> None:
        self._left = [_Module("", ref(model), None)]
        self._seen: set[int] = set()
        self._watched: list[_Module] = []

    def proceed(self) -> list[_Part] | None:
        """Read the next `MODULES_A_STEP` modules. When the last is read: the first `MOST_PARTS` parts, in the model's
        order."""
        left = self._left
        for _ in range(MODULES_A_STEP):
            if not left:
                break
            self._read(left.pop())
        return None if left else list(islice(self._parts(), MOST_PARTS))

    def _read(self, entry: _Module) -> None:
        module = entry.module()
        if module is None or id(module) in self._seen:
            return
        self._seen.add(id(module))
        parameters = [each for each in module._parameters.values() if each is not None]
        if parameters:
            is_trainable = any(each.requires_grad for each in parameters)
            above: _Module | None = entry
            while above is not None and not (above.is_trainable if is_trainable else above.has_parameters):
                above.has_parameters, above.is_trainable = True, above.is_trainable or is_trainable
                above = above.parent
        if any(_count([module])):
            self._watched.append(entry)
        children = [
            _Module(_name(entry.fqn, module, name), ref(child), entry)
            for name, child in module._modules.items()
            if child is not None
        ]
        self._left += reversed(children)

    def _parts(self) -> Iterator[_Part]:
        taken: set[_Module] = set()
        for each in self._watched:
            outermost = each
            while (above := outermost.parent) is not None and above.fqn and not above.is_trainable:
                outermost = above
            if not outermost.fqn or outermost.is_trainable or not outermost.has_parameters or outermost in taken:
                continue
            taken.add(outermost)
            module, watched = outermost.module(), each.module()
            if module is not None and watched is not None and _is_frozen(module):
                yield _Part(outermost.fqn, module, watched)


def _name(fqn: str, parent: nn.Module, attribute: str) -> str:
    if is_wrapped(parent, attribute):
        return fqn
    return f"{fqn}.{attribute}" if fqn else attribute


def _is_frozen(module: nn.Module | None) -> bool:
    if module is None:
        return False
    has_parameters = False
    for each in module.parameters():
        if each.requires_grad:
            return False
        has_parameters = True
    return has_parameters


def _part_of(model: nn.Module, norms: Iterable[nn.Module]) -> str:
    """The innermost module that has all of these, and the dropouts beside what is trained; "": the model itself."""
    known = {id(each) for each in norms}
    for each in model.modules():
        if any(parameter.requires_grad for parameter in each.parameters()):
            known.update(id(child) for child in each.children() if isinstance(child, _DropoutNd))
    named = (name for name, each in clean_modules(model).items() if id(each) in known)
    paths = [name.split(".")[:-1] for name in islice(named, MOST_NORMS)]
    same = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in same)


def _norms_of(model: nn.Module, is_trained: Callable[[nn.Parameter], bool]) -> list[_NormBase]:
    """Norms with running statistics of whose own parameters any is trained, or where they have none, of those of what
    they are a direct part of."""
    norms = {
        child: None
        for each in model.modules()
        for child in each.children()
        if isinstance(child, _NormBase)
        and child.running_mean is not None
        and any(map(is_trained, (each if child.weight is None else child).parameters()))
    }
    return list(norms)


def tracking_norms(module: nn.Module) -> list[_NormBase]:
    """The first of its norms with running statistics."""
    every = (each for each in module.modules() if isinstance(each, _NormBase) and each.running_mean is not None)
    return list(islice(every, MOST_NORMS))


def statistics_of(norms: Iterable[_NormBase]) -> list[Tensor]:
    """Their running means and variances, in turn; [] where they are not on one device, or cannot be read now."""
    found = [each for norm in norms for each in (norm.running_mean, norm.running_var) if each is not None]
    is_readable = all(
        why_unobservable(each) is None and not is_being_captured(each) and each.device == found[0].device
        for each in found
    )
    return found if is_readable else []


@torch.no_grad()
def _untrained_norms(model: nn.Module | None) -> Tensor | float | None:
    """How many norms with running statistics have a gradient, where all of these are in `eval()` and have the mean of 0
    and the variance of 1 that they began with, else 0; None where none is so, by what needs no reading. A target that
    is made by chance and runs without gradients is meant to be as it was made."""
    norms = [] if model is None else _norms_of(model, lambda each: each.grad is not None)[:MOST_NORMS]
    statistics = [] if any(each.training for each in norms) else statistics_of(norms)
    if not statistics:
        return None
    means, variances = (torch.cat([each.flatten().float() for each in statistics[at::2]]) for at in (0, 1))
    count = ((means == 0).all() & (variances == 1).all()) * len(norms)
    return float(count) if count.is_cpu else count


def _count(modules: list[nn.Module]) -> tuple[int, int]:
    """Dropouts, and norms with running statistics."""
    dropouts = sum(isinstance(each, _DropoutNd) and each.p > 0 for each in modules)
    return dropouts, sum(isinstance(each, _NormBase) and each.running_mean is not None for each in modules)
