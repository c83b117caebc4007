"""Event `evaluated_in_train`: one place of the code that evaluated the model in `eval()` and now does so in `train()`.

A forward without gradients in `train()` moves the running statistics of norms and drops elements out, and nothing that
is trained shows it. Many mean that: a generator that makes pictures for its critic, statistics that are estimated anew,
labels that a model gives itself, Monte Carlo dropout. Such places have called the model in `train()` from the first.
So a place counts that did so in `eval()` in several steps, and in no other mode, and then as seldom in `train()`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from weakref import ref

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from rangewatch.core import limits
from rangewatch.recording.events import Events, sendable
from rangewatch.steps.evaluation.training_mode import tracking_norms
from rangewatch.wire.events import EvaluatedInTrain

EVALS, LASTING = 2, 2
"""Steps with a call in `eval()` that make a place one of evaluation, and steps in a row in `train()` that are reported:
of one alone, as the last of a training, statistics may be estimated anew."""

AS_SELDOM = 0.5
"""Of the fewest steps between two such in `eval()`: what comes sooner in `train()`, as a rollout in each step does, is
no evaluation, though code that evaluates calls the model at the same place."""

FRAMES, MOST_FRAMES = 3, 64
"""Of the code that calls, by which a place is known: a helper that calls the model has several callers."""

MOST_PLACES, MOST_EVENTS = 64, 32

_FOREIGN = tuple(str(each) + os.sep for each in (Path(torch.__file__).parent, Path(__file__).parents[2]))
"""Torch and ourselves."""

_Key = tuple[tuple[str, int], ...]


class _Place:
    """What it has called: in how many steps in `eval()`, the last of them and the fewest steps between two; in how many
    in `train()` since, the first and the last of them."""

    __slots__ = (
        "dropouts", "evals", "first", "gap", "in_eval", "in_train", "is_other", "is_reported", "last", "norms", "steps",
    )  # fmt: skip

    def __init__(self) -> None:
        self.in_eval = self.in_train = self.is_other = self.is_reported = False
        self.evals = self.steps = self.norms = self.dropouts = 0
        self.first = self.last = -1
        self.gap = sys.maxsize


class EvaluationPlaces:
    """Of one model. Called by the training thread; it reads no tensor."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._places: dict[tuple[_Key, ref[nn.Module]], _Place] = {}
        self._emitted = 0
        self._open: list[tuple[_Key, _Place]] = []
        """Those of the open step."""

    def passed(self, module: nn.Module, *, is_training: bool) -> None:
        """`module` is called without gradients, by itself."""
        key = _place()
        place = self._places.get((key, ref(module)))
        if place is None:
            if not key or len(self._places) >= MOST_PLACES:
                return
            place = self._places[key, ref(module)] = _Place()
        if place.is_other:
            return
        if not (place.in_eval or place.in_train):
            self._open.append((key, place))
        if not is_training:
            place.in_eval = True
        elif not place.in_train:
            place.in_train = True
            if place.evals >= EVALS:
                place.norms, place.dropouts = _moved(module)

    def end_step(self, step: int) -> None:
        """The open step, `step`, is about to be closed."""
        opened, self._open = self._open, []
        for key, place in opened:
            in_eval, place.in_eval, place.in_train = place.in_eval, False, False
            if in_eval:
                self._evaluated(place, step)
            else:
                self._in_train(key, place, step)

    def _evaluated(self, place: _Place, step: int) -> None:
        """In `eval()`, be it in `train()` as well, as where statistics are estimated anew before."""
        if place.is_reported:
            self._emit(EvaluatedInTrain(0))
        if place.evals and not place.steps:
            place.gap = min(place.gap, step - place.last)
        place.is_reported, place.steps, place.last = False, 0, step
        place.evals += 1

    def _in_train(self, key: _Key, place: _Place, step: int) -> None:
        """In `train()` alone."""
        place.is_other = place.evals < EVALS or (not place.is_reported and step - place.last < AS_SELDOM * place.gap)
        if place.is_other:
            return
        place.steps += 1
        place.last = step
        if place.steps == 1:
            place.first = step
        if place.steps == LASTING and place.norms + place.dropouts:
            place.is_reported = True
            file, number = key[0]
            line = sendable(f"{Path(file).name}:{number}")[: limits.NAME_CHARACTERS]
            self._emit(EvaluatedInTrain(LASTING, place.first, place.evals, place.norms, place.dropouts, line))

    def _emit(self, details: EvaluatedInTrain) -> None:
        if self._emitted < MOST_EVENTS:
            self._emitted += 1
            self._events.add(details)


def _place() -> _Key:
    """Files and lines of the innermost frames that are neither torch's nor ours, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    found: list[tuple[str, int]] = []
    for _ in range(MOST_FRAMES):
        if frame is None or len(found) == FRAMES:
            break
        if not frame.f_code.co_filename.startswith(_FOREIGN):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _moved(module: nn.Module) -> tuple[int, int]:
    """Norms in `train()` whose running statistics a forward moves, and dropouts that drop out elements."""
    norms = sum(each.training and each.momentum != 0 for each in tracking_norms(module))
    return norms, sum(isinstance(each, _DropoutNd) and each.training and each.p > 0 for each in module.modules())
