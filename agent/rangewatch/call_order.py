"""Where a new tensor belongs among those that are known, in the order in which a step uses them."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque

from rangewatch.limits import CALL_INDEX_GAP, SEEN_TENSORS

Place = tuple[int, int]
"""Call index and number: what readers sort by."""

_FRONT: Place = (-1, -1)


class CallOrder:
    """Gives call indices with gaps, so that a tensor that first shows late comes after the one read before it.

    A pass is a run of outputs (a forward) or of gradients (a backward): in a second microbatch the one read before is
    the furthest of this pass. The furthest, not the last: a ReLU that is used everywhere says nothing of where we are.
    """

    def __init__(self) -> None:
        self._passed: deque[int] = deque(maxlen=SEEN_TENSORS)
        self.passed = self._passed.append
        """A tensor of this number is being read."""
        self._places: list[Place] = []
        self._ordered: list[Place] = []
        self._is_forward: list[bool] = []
        self._last_weight = _FRONT
        self.begin_step()

    def begin_step(self) -> None:
        """Nothing is read yet in the open step."""
        self._passed.clear()
        self._furthest = self._step_furthest = _FRONT
        self._in_forward = True

    def add(self, kind: str) -> int:
        """The call index of the next number, a tensor of `kind` that is about to be read for the first time."""
        while self._passed:
            number = self._passed.popleft()
            self._go_on(self._places[number], is_forward=self._is_forward[number])
        is_forward = kind in {"weight", "input", "output"}
        self._enter(is_forward)
        is_weight = kind == "weight"  # there before the forward, whenever it is read
        place = self._after(self._last_weight if is_weight else self._before()), len(self._places)
        if is_weight:
            self._last_weight = place
        self._places.append(place)
        self._is_forward.append(is_forward)
        insort(self._ordered, place)
        return place[0]

    def _go_on(self, place: Place, *, is_forward: bool) -> None:
        self._enter(is_forward)
        self._furthest = max(self._furthest, place)
        self._step_furthest = max(self._step_furthest, place)

    def _enter(self, is_forward: bool) -> None:
        if is_forward is not self._in_forward:
            self._in_forward = is_forward
            self._furthest = _FRONT

    def _before(self) -> Place:
        return self._step_furthest if self._furthest == _FRONT else self._furthest

    def _after(self, before: Place) -> int:
        position = bisect_right(self._ordered, before)
        if position == len(self._ordered):
            return max(before[0], 0) + CALL_INDEX_GAP
        gap = self._ordered[position][0] - before[0]
        # An eighth, so that a branch of 40 modules still fits; then equal indices, which the higher number puts behind.
        return max(before[0] + (max(gap // 8, 1) if gap > 1 else 0), 0)
