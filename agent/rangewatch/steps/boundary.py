"""When a step ends, and what is a step inside a step: an optimizer whose `step` calls its parent class's is hooked
twice by torch.

Torch wraps the `step` of each class of which there is an instance, so its hooks are called for the inner call and again
for the outer one, if the parent class was instantiated too.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType
from typing import Any, Protocol

from torch.optim import Optimizer

from rangewatch.core.guard import logger
from rangewatch.hooks.optimizers.in_use import are_nested


class ClosesStep(Protocol):
    """The agent."""

    def close_step(self) -> None:
        """The open step is over."""


_UNSEEN = 16
"""Steps of a new optimizer before any step has ended, after which it is taken for the one that ends them."""

_ABSENT = 8
"""Steps that end without an optimizer, because another steps twice, after which it is no longer waited for. One that
comes back sooner, as a generator after its critics, was never gone; one that comes back later is known to be rare."""


class StepBoundary:
    """Decides which of the calls of optimizers and scalers ends the step, and closes it.

    With a scaler `scaler.update()` ends it, since a scaler that skips never calls `optimizer.step`; with several, when
    each has been updated once. Where a scaler is not updated any more, an optimizer that steps a second time shows
    that: those two steps are one, and from then on the optimizer ends the step until a scaler is updated again. With
    several optimizers and no scaler the step ends when each has stepped once, or when one steps a second time; of those
    that take turns, see `take_turns`, one is enough. `ends` says it otherwise, see `Options.step_ends`.

    New optimizers, which `attach` was not given, end steps where those it was given do so no more: when one of them
    has stepped more than twice as often within one step as ever before.
    """

    def __init__(self, steps: ClosesStep, optimizer_count: int, scalers: Iterable[int] = (), ends: str = "all") -> None:
        self._steps, self.ends = steps, ends
        self.expected = set(range(optimizer_count))
        """The optimizers that end the step."""
        self.served_ids: list[frozenset[int]] = []
        """`id` of each optimizer, and of what it wraps, in the order of the keys: what scalers know them by."""
        self._held: dict[int, frozenset[int]] = {}
        self._turns: dict[int, set[int]] = {}
        """Of an optimizer those that are not waited for in a step in which it has stepped."""
        self._deciding = {"first": 0, "last": optimizer_count - 1}
        self.awaited = set(scalers)
        """The scalers that end the step."""
        self._stepped: set[int] = set()
        self._updated: set[int] = set()
        self._missed: Counter[int] = Counter()
        self._keys = itertools.count(optimizer_count)
        self._new: dict[int, int] = {}
        """New optimizers that end no step, and how often each has stepped in the open one."""
        self._most_new = 0
        self._has_ended = self._has_warned = False
        self._guessed: int | None = None
        """A scaler that may come, of optimizers that have not stepped yet."""

    def take_turns(self, held: Mapping[int, frozenset[int]]) -> None:
        """`held`: `id` of the parameters of each optimizer. Two that hold the same, as those of two stages do, take
        turns: each update of them is a step. Of two of which one holds part of the other's it shows when one steps
        twice without the other: an encoder's own may be a second one that steps each time."""
        self._held = dict(held)
        for key, other in itertools.permutations(held, 2):
            if held[key] and held[key] == held[other]:
                self._turns.setdefault(key, set()).add(other)

    def new_key(self) -> int:
        """The key of an optimizer that `attach` was not given, and that takes no other's place."""
        key = next(self._keys)
        self._new[key] = 0
        return key

    def optimizer_stepped(self, key: int) -> None:
        """Optimizer `key` has stepped."""
        if self.ends == "handle" or (key in self._new and not self._takes_over(key)):
            return
        is_second = key in self._stepped
        self._stepped.add(key)
        if self._missed[key] < _ABSENT:
            self._missed[key] = 0
        if self._guessed is not None:  # it has none
            self.awaited.discard(self._guessed)
            self._guessed = None
            if self.awaited <= self._updated:
                self._end()
                return
        if self.ends == "all":
            self.expected.add(key)
            if is_second:
                self.awaited = set()
                self._note_absent(key)
            self.expected -= self._turns.get(key, set())
            is_end = is_second or self.expected <= self._stepped
        else:
            is_end = self.ends == "any" or key == self._deciding[self.ends]
            if is_end and is_second:
                self.awaited = set()
        if is_end and not self.awaited:
            self._end()

    def scaler_came(self, key: int) -> None:
        """Scaler `key` is found. Where those that are known have just ended a step, its own is the rest of that."""
        self._guessed = None
        if key not in self.awaited and not self._stepped:
            self._updated |= self.awaited
        self.awaited.add(key)

    def another_may_come(self, key: int, served: frozenset[int]) -> None:
        """The first scaler has stepped the optimizers of these ids: another, `key`, may step those that are left."""
        left = self.expected - self._stepped
        if any(at in left and not served & each for at, each in enumerate(self.served_ids)):
            self.awaited.add(key)
            self._guessed = key

    def scaler_updated(self, key: int, served: frozenset[int] = frozenset()) -> None:
        """Scaler `key` has been updated; `served`: ids of the optimizers that it stepped before, if it can say."""
        if self.ends == "handle":
            return
        if key not in self.awaited:
            self.awaited.add(key)  # from here on: an optimizer has ended this one's step already
            return
        position = self._deciding.get(self.ends)
        if position is not None and served and position < len(self.served_ids):
            if served & self.served_ids[position]:
                self._end()
            return
        is_second = key in self._updated
        self._updated.add(key)
        if is_second:
            self.awaited = self.awaited & self._updated
        if self.awaited <= self._updated or self.ends == "any":
            self._end()

    def forward_begins(self) -> None:
        """The model is called again. Where `attach` was given no optimizer, and nobody has said that a step is over, a
        new optimizer that has stepped ended it.
        """
        if not self.expected and not self.awaited and self.ends != "handle" and any(self._new.values()):
            self._follow_new()
            self._end()

    def handle_stepped(self) -> None:
        """The loop says itself where a step ends: optimizers do not, from here on."""
        self.ends = "handle"

    def _takes_over(self, key: int) -> bool:
        self._new[key] += 1
        most = 2 * self._most_new + 1 if self._has_ended else _UNSEEN
        if not self.expected and not self.awaited:
            most = 1  # the next forward says it sooner, where there is one that can be seen
        if self._new[key] <= most:
            return False
        self._follow_new()
        return True

    def _follow_new(self) -> None:
        self.expected = {key for key, count in self._new.items() if count}
        self._stepped = set(self.expected)
        self._new = {key: 0 for key in self._new if key not in self.expected}
        self.ends, self.awaited = "all", set()

    def _note_absent(self, key: int) -> None:
        """`key` has stepped a second time."""
        absent = self.expected - self._stepped
        for other in absent:
            if are_nested(self._held.get(key, frozenset()), self._held.get(other, frozenset())):
                self._turns.setdefault(key, set()).add(other)
                self._turns.setdefault(other, set()).add(key)
        self._missed.update(absent)
        self.expected -= {key for key in absent if self._missed[key] >= _ABSENT}
        if absent and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "rangewatch: one optimizer has stepped twice and another not yet: those two steps are one. "
                'attach(step_ends="last"), "first" or "any" says which optimizer ends a step'
            )

    def _end(self) -> None:
        self._stepped.clear()
        self._updated.clear()
        self._most_new = max([self._most_new, *self._new.values()])
        self._new = dict.fromkeys(self._new, 0)
        self._has_ended = True
        self._steps.close_step()


def is_inner(arguments: tuple[Any, ...]) -> bool:
    """Whether the step hook that was called with `arguments` belongs to a step inside a step of the same optimizer.

    The stack tells, which no exception in a step leaves in disorder as it would a counter. It is looked at only where
    it can happen. In compiled code, where a hook gets no arguments, it is not known.
    """
    if not arguments or _CODE is None or not _is_wrapped_twice(type(arguments[0])):
        return False
    frame: FrameType | None = sys._getframe(1)
    depth = 0
    while frame is not None and depth < 2:
        depth += frame.f_code is _CODE and frame.f_locals.get("self") is arguments[0]
        frame = frame.f_back
    return depth > 1


def _is_wrapped_twice(kind: type) -> bool:
    return sum(getattr(vars(base).get("step"), "hooked", False) is True for base in kind.__mro__) > 1


def _wrappers_code() -> CodeType | None:
    wrap: Any = getattr(Optimizer, "profile_hook_step", None)
    return None if wrap is None else wrap(lambda optimizer: None).__code__


_CODE = _wrappers_code()
"""Of what torch wraps around every `step`; it names the optimizer `self`."""
