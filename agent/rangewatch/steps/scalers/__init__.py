"""Shelf 5: every kind of loss scaler that is known. To add one is one file and one line in `ALL`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rangewatch.steps.scalers.base import Kind, has_method
from rangewatch.steps.scalers.deepspeed import EngineOptimizer
from rangewatch.steps.scalers.grad_scaler import GradScaler
from rangewatch.steps.scalers.megatron import MegatronOptimizer
from rangewatch.steps.scalers.reported import LossScaler, MegatronGradScaler
from rangewatch.steps.scalers.wrapped import wrapped_in

GRAD_SCALER = GradScaler()
ALL: tuple[Kind, ...] = (GRAD_SCALER, MegatronOptimizer(), EngineOptimizer(), LossScaler(), MegatronGradScaler())
"""The first that fits is taken."""


class MatchedScaler(NamedTuple):
    """A scaler and its kind."""

    kind: Kind
    scaler: Any


def given(scaler: Any) -> list[MatchedScaler]:
    """What the user gave as `scaler`: one, a list, or an optimizer or engine that has one; each object once.

    Raises `TypeError` for what is none of `ALL`.
    """
    scalers = list(scaler) if isinstance(scaler, Sequence) and not isinstance(scaler, str) else [scaler]
    if not scalers:
        raise TypeError("scaler is an empty list: leave it out, or pass a torch.amp.GradScaler")
    return _each_once(_find(each) or _refuse(each) for each in scalers)


def of_optimizers(optimizers: Iterable[Any]) -> list[MatchedScaler]:
    """The scalers that optimizers bring along: Accelerate's have a `scaler`, DeepSpeed's and Megatron's are one."""
    matched = (_find(optimizer) or _find(getattr(optimizer, "scaler", None)) for optimizer in optimizers)
    return _each_once(each for each in matched if each is not None)


def _find(candidate: Any) -> MatchedScaler | None:
    return next((MatchedScaler(kind, each) for each in wrapped_in(candidate) for kind in ALL if kind.fits(each)), None)


def _each_once(matched: Iterable[MatchedScaler]) -> list[MatchedScaler]:
    return list({id(each.scaler): each for each in matched}.values())


def _refuse(scaler: Any) -> MatchedScaler:
    missing = [name for name in ("scale", "step", "update") if not has_method(scaler, name)]
    raise TypeError(f"scaler {type(scaler).__name__} has no method {missing[0]!r}: pass a torch.amp.GradScaler")
