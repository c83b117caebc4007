"""The optimizers that train the model, and which of them rest because another has taken their place, as where a
training has two stages and `attach` was given the optimizers of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import ref

from rangewatch.recording.observer import StepReader

MOST_TURNS, MOST_CHANGES = 8, 64
"""How often who rests may change, and who steps: of those that go on taking turns, as of two tasks or a GAN's, none
rests, and nothing is read anew at each turn."""


class OptimizersInUse(StepReader):
    """Called by the training thread. One rests from the end of a step on in which it did not step and another did that
    holds the same parameters, or part of them, or more; until it steps again. Keeps no optimizer alive.
    """

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self._optimizers = [ref(each) for each in optimizers]
        self._stepped: set[int] = set()
        """`id` of those that have stepped in the open step."""
        self._last: set[int] = set()
        self._turns = self._changes = 0
        self._resting: frozenset[int] = frozenset()

    @property
    def resting(self) -> frozenset[int]:
        """`id` of those that rest."""
        return self._resting

    def every(self) -> Iterator[Any]:
        """Those that rest, too, in the order in which they came."""
        return (each for one in self._optimizers if (each := one()) is not None)

    def in_use(self) -> Iterator[Any]:
        """Those that do not rest."""
        return (each for each in self.every() if id(each) not in self._resting)

    def add(self, optimizer: Any) -> None:
        """It has come to train the model too."""
        self._optimizers = [each for each in self._optimizers if each() is not None] + [ref(optimizer)]
        self._resting -= {id(optimizer)}  # of one that is gone
        self._turns = self._changes = 0

    def after(self, optimizer: Any) -> None:
        """It has updated its parameters."""
        if len(self._optimizers) > 1:
            self._stepped.add(id(optimizer))

    def end_step(self) -> None:
        """The open step is about to be closed; before what reads the optimizers then."""
        stepped, self._stepped = self._stepped, set()
        if not stepped or stepped == self._last or self._turns > MOST_TURNS or self._changes > MOST_CHANGES:
            return
        self._last, self._changes = stepped, self._changes + 1
        held = {id(each): parameters_held(each) for each in self.every()}
        others = [held[each] for each in stepped if each in held]
        idle = {each for each in held if each not in stepped}
        replaced = {each for each in idle if any(are_nested(held[each], other) for other in others)}
        resting = frozenset(self._resting - stepped | replaced)
        self._turns += resting != self._resting
        are_in_turn = self._turns > MOST_TURNS or self._changes > MOST_CHANGES
        self._resting = frozenset() if are_in_turn else resting


def parameters_held(optimizer: Any) -> frozenset[int]:
    """`id` of each parameter of its groups; none of what has no groups."""
    groups = getattr(optimizer, "param_groups", None) or ()
    return frozenset(id(each) for group in groups for each in group["params"])


def are_nested(one: frozenset[int], other: frozenset[int]) -> bool:
    """Whether all that one of them holds is the other's too."""
    return bool(one and other) and (one <= other or other <= one)
