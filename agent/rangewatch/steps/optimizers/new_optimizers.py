"""Optimizers that `attach` was not given and that train the model all the same, such as one made anew when layers are
unfrozen. Torch calls one hook of ours before each step of any optimizer; those of other models are passed over.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from rangewatch.core.guard import Guard, Guarded, logger
from rangewatch.delivery.sender import THREAD as SENDER
from rangewatch.hooks.compiled import CompiledCall
from rangewatch.hooks.optimizers.in_use import parameters_held
from rangewatch.recording.eager import run_eagerly
from rangewatch.steps.boundary import StepBoundary
from rangewatch.steps.end_hooks import stepped, watch_step
from rangewatch.steps.interface import StepRecorder
from rangewatch.steps.scalers.wrapped import stepping, wrapped_in

MOST_FOLLOWED = 64
"""New optimizers of one training that are followed; a loop that makes one for each batch is more than that."""

_is_compiling = torch.compiler.is_dynamo_compiling


class _Known(NamedTuple):
    """One that is watched. `key`: its number for the boundary; `parameters`: ids of those of the model that it has."""

    key: int
    optimizer: ref[Any]
    parameters: frozenset[int]


class AnyStepHook(Guarded):
    """Called before each step of each optimizer of the process. In compiled code it does nothing: what is compiled
    there has stepped before, or was given to `attach`."""

    __slots__ = ()

    def __call__(self, *args: Any) -> None:
        if not _is_compiling():
            super().__call__(*args)


run_eagerly(AnyStepHook.__call__)


class NewOptimizers:
    """Follows optimizers that were made after `attach`, or that it was not given.

    `follow` adds to one what the others have: its reads and its phase of the step.
    """

    def __init__(
        self,
        agent: StepRecorder,
        model: nn.Module,
        optimizers: Sequence[Any],
        boundary: StepBoundary,
        follow: Callable[[Any], None],
        undo: contextlib.ExitStack,
    ) -> None:
        self._agent, self._model, self._boundary, self._follow, self._undo = agent, ref(model), boundary, follow, undo
        self._guard: Guard = agent.guard
        self._known: list[_Known] = []
        self._passed_over: dict[int, tuple[ref[Any], int]] = {}
        """Of other models, and containers of watched ones, by id, with how many parameter groups each had."""
        self._inside: dict[int, ref[Any]] = {}
        """Watched ones that have begun a step: one that steps inside (`ZeroRedundancyOptimizer` has such) is theirs.

        A step that raises is never left."""
        self._wrapped = [ref(inner) for each in optimizers for inner in wrapped_in(each)]
        self._followed = 0
        parameters = _ids(model)
        for key, optimizer in enumerate(optimizers):
            self._add(key, optimizer, _of_model(optimizer, parameters))
        self._hook = AnyStepHook(self._guard, "new optimizer", self._steps)
        _ask(self._hook)
        undo.callback(_forget, self._hook)

    def _add(self, key: int, optimizer: Any, parameters: frozenset[int]) -> None:
        self._known = [each for each in self._known if each.key != key]
        self._known.append(_Known(key, ref(optimizer), parameters))
        number, reference = id(optimizer), ref(stepping(optimizer))

        def enter(*args: Any) -> None:
            self._inside[number] = reference

        def leave(*args: Any) -> None:
            self._inside.pop(number, None)

        before, after = (CompiledCall(self._guard, "new optimizer", each) for each in (enter, leave))
        watch_step(optimizer, before, after, self._undo)

    def _steps(self, *args: Any) -> None:
        optimizer: Any = args[0]
        if not self._agent.observer.is_active or self._is_known(optimizer):
            return
        group_count = len(optimizer.param_groups)
        passed = self._passed_over.get(id(optimizer))
        if passed is not None and passed[0]() is optimizer and passed[1] == group_count:
            return
        model = self._model()
        own = frozenset[int]() if model is None else _of_model(optimizer, _ids(model))
        if own and not self._only_passes_on(optimizer):
            self._begin_to_follow(optimizer, own)
        else:
            self._passed_over = {key: each for key, each in self._passed_over.items() if each[0]() is not None}
            self._passed_over[id(optimizer)] = ref(optimizer), group_count

    def _is_known(self, optimizer: Any) -> bool:
        if any(each.optimizer() is optimizer for each in self._known):
            return True
        if any(each() is optimizer for each in self._wrapped):
            return True
        begun = [each() for each in self._inside.values()]
        return any(each is not None and _is_running(each) for each in begun)

    def _only_passes_on(self, optimizer: Any) -> bool:
        """Whether it keeps watched ones, as torchtitan's container does: their steps are its step."""
        known = [each.optimizer() for each in self._known]
        return any(held is each for held in _held_by(optimizer) if held is not None for each in known)

    def _begin_to_follow(self, optimizer: Any, own: frozenset[int]) -> None:
        if self._followed >= MOST_FOLLOWED:
            return
        self._followed += 1
        covered = [each.key for each in self._known if each.parameters and each.parameters <= own]
        are_gone = all(each.optimizer() is None for each in self._known)
        if self._known and (covered or are_gone):
            replaced = covered or [each.key for each in self._known]
            key = min(replaced)
            self._known = [each for each in self._known if each.key not in replaced]
            self._boundary.expected -= {each for each in replaced if each != key}
        else:
            key = self._boundary.new_key()
        self._say(type(optimizer).__name__, has_known=bool(self._known))
        self._follow(optimizer)
        self._add(key, optimizer, own)
        watch_step(
            optimizer, None, CompiledCall(self._guard, "step", partial(stepped, self._boundary, key)), self._undo
        )

    def _say(self, name: str, *, has_known: bool) -> None:
        if self._boundary.ends == "handle":
            return
        if has_known or self._followed > 1 or self._boundary.expected:
            logger.warning(
                "rangewatch: step %d: %s, which attach was not given, trains the model: it is followed from here on",
                self._agent.step,
                name,
            )
        else:
            logger.warning(
                "rangewatch: attach was given no optimizer: unless handle.step() is called, a step is one of %s. "
                "Better: attach(model, optimizer)",
                name,
            )


_hooks: tuple[AnyStepHook, ...] = ()
"""Replaced and never changed: an optimizer may step in any thread."""
_registrations: list[RemovableHandle] = []


def _call_all(*args: Any) -> None:
    for each in _hooks:
        each(*args)


run_eagerly(_call_all)


def _ask(hook: AnyStepHook) -> None:
    global _hooks
    _hooks = (*_hooks, hook)
    if not _registrations:
        _registrations.append(register_optimizer_step_pre_hook(_call_all))


def _forget(hook: AnyStepHook) -> None:
    global _hooks
    _hooks = tuple(each for each in _hooks if each is not hook)
    # Not by the sender's thread: the user's may be going through torch's dictionary of hooks.
    if not _hooks and threading.current_thread().name != SENDER:
        while _registrations:
            _registrations.pop().remove()


def _is_running(optimizer: Any) -> bool:
    """Whether this thread is inside a method of `optimizer`, or of what wraps its step."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        names = frame.f_locals
        if names.get("self") is optimizer or names.get("target") is optimizer:
            return True
        frame = frame.f_back
    return False


def _held_by(optimizer: Any) -> Iterator[Any]:
    """What it has as attributes, alone or several in one; torch's own tables of tensors are left out."""
    for name, value in vars(optimizer).items():
        if name in ("state", "param_groups"):
            continue
        yield from value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else (value,)


def _ids(model: nn.Module) -> frozenset[int]:
    return frozenset(map(id, model.parameters()))


def _of_model(optimizer: Any, parameters: frozenset[int]) -> frozenset[int]:
    return parameters_held(optimizer) & parameters
