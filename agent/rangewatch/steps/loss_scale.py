"""Records what the loss was multiplied by in each step and whether the step was skipped, and says when a step ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rangewatch.core.guard import Guarded
from rangewatch.steps import scalers
from rangewatch.steps.boundary import StepBoundary
from rangewatch.steps.interface import StepRecorder
from rangewatch.steps.scalers.base import Values
from rangewatch.steps.scalers.grad_scaler import either
from rangewatch.steps.scalers.method_watch import Patch, Watch
from rangewatch.wire.events import Scaler

MOST_EMITTED = 32
"""Times that a scaler's settings are sent in a process: once, and again when they have changed."""


def check_scaler(scaler: Any) -> None:
    """Raise `TypeError` when `scaler` is neither like a scaler of `scalers.ALL` nor a list of such."""
    scalers.given(scaler)


def scalers_of(scaler: Any, optimizers: Sequence[Any]) -> list[scalers.MatchedScaler]:
    """The scalers that the user gave; where none was given, those that the optimizers bring along."""
    return scalers.of_optimizers(optimizers) if scaler is None else scalers.given(scaler)


def is_loss_scaled(scaler: Any, optimizers: Sequence[Any]) -> bool:
    """Whether the gradients are multiplied by a loss scale: not by a disabled scaler, nor by one fixed at 1.0."""
    return any(each.kind.is_scaling(each.scaler) for each in scalers_of(scaler, optimizers))


class LossScaling:
    """The scalers of one model. `loss_scale` is the first one's, `loss_scale/1` the second's and so on, as given.

    `found_inf` is of the step: 1.0 if any of them found one. `boundary` hears the number of each that has settled a
    step. `optimizers`: ids of those that the scalers may serve. `is_alone`: nothing else ends steps, so that a disabled
    scaler must.
    """

    def __init__(
        self,
        agent: StepRecorder,
        matched: Sequence[scalers.MatchedScaler],
        boundary: StepBoundary,
        optimizers: frozenset[int],
        *,
        is_alone: bool,
    ) -> None:
        self.agent, self.boundary, self.is_alone = agent, boundary, is_alone
        self._found_inf: tuple[int, Tensor | float] = (-1, 0.0)
        self._all, self._is_found, self._has_settled = optimizers, False, False
        first = optimizers if len(matched) == 1 else frozenset[int]()
        self.watched = [WatchedScaler(self, number, each, first) for number, each in enumerate(matched)]

    def record(self, number: int, values: Values) -> None:
        """Record what scaler `number` says of the open step; nothing where that one is closed already."""
        if number not in self.boundary.awaited:
            return
        named: dict[str, Any] = {}
        if "loss_scale" in values:
            named[_series(number)] = values["loss_scale"]
        if "found_inf" in values:
            named["found_inf"] = self._any(values["found_inf"])
        self.agent.record(named)

    def emit(self, number: int, scaler: Any, settings: dict[str, float]) -> None:
        """Say how scaler `number` changes its scale."""
        if self.agent.observer.is_active:
            name = type(scaler).__name__
            self.agent.events.add(Scaler(_series(number), name, was_passed=not self._is_found, **settings))

    def found(self, matched: scalers.MatchedScaler, optimizer: Any) -> None:
        """`attach` was given no scaler, and this one steps an optimizer of the model that no other serves."""
        self._is_found, number = True, len(self.watched)
        self.agent.loss_is_scaled()
        self.boundary.scaler_came(number)
        self.watched.append(WatchedScaler(self, number, matched, frozenset({id(optimizer)})))

    def settled(self, number: int, served: frozenset[int]) -> None:
        """Scaler `number` has settled a step of these optimizers."""
        if self._is_found and not self._has_settled:
            self.boundary.another_may_come(len(self.watched), served)
        self._has_settled = True
        self.boundary.scaler_updated(number, served)

    def serves(self, optimizer: Any) -> bool:
        """Whether a scaler serves this optimizer, or may."""
        return any(id(optimizer) in each.optimizers for each in self.watched)

    def scale(self) -> Tensor | float:
        """What the loss of a backward is multiplied by now, as far as the first scaler says; 1.0 where none does."""
        scale = self.watched[0].scale() if self.watched else None
        return 1.0 if scale is None else scale

    def only_scale(self) -> Tensor | None:
        """The tensor that the one scaler multiplies losses by; None where there are several, or it has none."""
        scale = self.watched[0].scale() if len(self.watched) == 1 else None
        return scale if isinstance(scale, Tensor) else None

    def serves_all(self) -> bool:
        """Whether the one scaler has stepped all optimizers that were attached, when it was updated last."""
        return len(self.watched) == 1 and bool(self._all) and self._all <= self.watched[0].optimizers

    def is_scaled_now(self) -> bool:
        """Whether gradients are still multiplied by a loss scale, as far as is known: no scaler has unscaled any since
        it settled a step last."""
        return any(each.is_scaled_now() for each in self.watched)

    def remove(self) -> None:
        """Stop watching."""
        for each in self.watched:
            each.remove()

    def _any(self, found_inf: Tensor | float) -> Tensor | float:
        if len(self.watched) < 2 and not self._is_found:
            return found_inf
        step, before = self._found_inf
        value = either(before, found_inf) if step == self.agent.step else found_inf
        self._found_inf = self.agent.step, value  # one element, kept until another scaler of the step has spoken
        return value


def _series(number: int) -> str:
    return f"loss_scale/{number}" if number else "loss_scale"


class WatchedScaler:
    """One of the scalers, or another that has taken its place.

    Nobody tells us of a new GradScaler made in the middle of a run. It is known by the optimizers that it steps, which
    are the old one's, when it is updated; so a step that it skips is closed as well. Where one cannot be known so (its
    class has an `update` of its own), `StepBoundary` waits no longer for the old one when an optimizer steps twice.
    """

    def __init__(
        self, scaling: LossScaling, number: int, matched: scalers.MatchedScaler, optimizers: frozenset[int]
    ) -> None:
        self.number, self._scaling, self._kind = number, scaling, matched.kind
        self._optimizers, self._ends = optimizers, True
        self._settings: dict[str, float] = {}
        self._reported = 0
        if scaling.is_alone or matched.kind.is_enabled(matched.scaler):
            scaling.boundary.awaited.add(number)
        self._found_other = Guarded(scaling.agent.guard, "scaler", self._take_over)
        self._watch = self._begin(matched.scaler)
        self._patch: Patch | None = self._watch.patch
        if self._patch is not None:
            self._patch.finders.append(self)

    def remove(self) -> None:
        """Stop watching."""
        if self._patch is not None and self in self._patch.finders:
            self._patch.finders.remove(self)
        self._watch.remove()
        if self._patch is not None:
            self._patch.restore_if_unused()

    def scale(self) -> Tensor | float | None:
        """Its scale, where it is; None where it scales nothing."""
        scaler = self._watch.target()
        return None if scaler is None else self._kind.scale_of(scaler)

    def is_scaled_now(self) -> bool:
        """Whether it scales, and has unscaled nothing since its last update."""
        scaler = self._watch.target()
        return scaler is not None and self._kind.is_scaled_now(scaler)

    @property
    def optimizers(self) -> frozenset[int]:
        """`id` of each that it has served by its last update, or may serve before its first."""
        return self._optimizers

    def unwatched(self, target: Any, arguments: tuple[Any, ...]) -> None:
        """Another scaler is updated: it may have taken this one's place."""
        self._found_other(target)

    def _begin(self, scaler: Any) -> Watch:
        guard = self._scaling.agent.guard
        before, after = Guarded(guard, "scaler", self._before), Guarded(guard, "scaler", self._after)
        end = Guarded(guard, "step", self._end)  # it must go on where reading has given up

        def settled(scaler: Any, result: Any) -> None:
            after(scaler, result)
            end()

        return Watch(scaler, self._kind.method, before, settled)

    def _before(self, scaler: Any, arguments: tuple[Any, ...]) -> None:
        kind = self._kind
        self._ends = (self._scaling.is_alone or kind.is_enabled(scaler)) and kind.is_due(scaler)
        self._optimizers = kind.optimizers(scaler) or self._optimizers
        settings = kind.settings(scaler)
        if settings != self._settings and self._reported < MOST_EMITTED:
            self._settings, self._reported = settings, self._reported + 1
            self._scaling.emit(self.number, scaler, settings)
        self._scaling.record(self.number, kind.before(scaler, arguments))

    def _after(self, scaler: Any, result: Any) -> None:
        self._scaling.record(self.number, self._kind.after(scaler, result))

    def _end(self) -> None:
        ends, self._ends = self._ends, True
        if ends:
            self._scaling.settled(self.number, self._optimizers)

    def _take_over(self, other: Any) -> None:
        if self._kind.fits(other) and self._optimizers & self._kind.optimizers(other):
            old, self._watch = self._watch, self._begin(other)
            old.remove()
