"""Reads checksums of what ranks must hold alike, for the server to compare: no collective, and no waiting.

When the step's first update is about to be made, which is the same point on every rank: a value that differs has not
yet spread to the others as NaN, which would make all alike again. Each parameter has its turn once in `every` steps, by
the step's number alone, so that all ranks read the same ones though one of them was started anew. At a process's first
update all are read once: what begins wrong is seen then, and not when its turn comes.

What is alike on no other rank is read as well, with a weight of 0: whether an optimizer changes it can be seen so.

What all ranks hold alike, as replicas of DistributedDataParallel or of a loop that reduces gradients itself are, goes
into `checksum_max` and `checksum_min`; what only those along some axes do, into `axis_checksum` and `axis_balance`.
Frozen parameters are left alone, since anything may change them, and so is what is interrupted for some steps, as by
no_sync(): see `placements.why_not`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from weakref import ref

from torch import Tensor, nn

from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.recording.events import Events, sendable
from rangewatch.recording.observer import ForwardListener, Observer, StepReader
from rangewatch.recording.parallel.placements import (
    IN_NO_SYNC,
    NOT_REDUCED,
    Layout,
    Placed,
    may_be_compared,
    plain_part,
    why_not,
)
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.statistics import weight_of
from rangewatch.wire.events import CommunicationHook, Details, Mesh, NotReduced, Placements, ReducedByHand

UNREDUCED = 4
"""Readings in a row without a reduction that are reported: one update may be made so by mistake, and is seen by what
it does."""

_Pair = tuple[int, Tensor]


class ReplicaReads(StepReader):
    """Called around each step. `every`: see `Options.replica_every`; `in_forward`: told where a forward begins."""

    def __init__(
        self, observer: Observer, names: TensorNames, layout: Layout, every: int, in_forward: list[ForwardListener],
        events: Events, guard: Guard,
    ) -> None:  # fmt: skip
        self._observer, self._names, self._layout, self._every = observer, names, layout, every
        self._events, self._guard, self._hook = events, guard, ""
        self._turns: dict[int, list[Placed]] = {}
        self._step: int | None = None
        """The open step, until it has been read."""
        self._assign_at: int | None = None
        self._wrapper_count = self._search_count = self._by_hand_count = 0
        self._unreduced = NotReduced()
        """The present spell of updates without a reduction: how long it has lasted, whether it was reported or not."""
        self._alone: tuple[str, tuple[str, ...]] | None = None
        """By what this rank's parameters are wrapped that reduces over no other rank, and the axes of others."""
        self._frozen: list[ref[nn.Parameter]] = []
        self._in_forward = in_forward
        self._is_first = True

    def begin_step(self, step: int) -> None:
        """`step` is open: look in its forward for what wraps the model, unless that is known."""
        self._step = step
        self._layout.by_hand.begin_step()
        is_known = self._layout.wrappers or self._layout.replicated is True
        is_wanted = not is_known and self._search_count < limits.REPLICA_SEARCHES
        self._layout.by_hand.listen(self._guard, is_wanted=is_wanted and self._layout.world_size > 1)
        if is_wanted and self not in self._in_forward:
            self._in_forward.append(self)

    def read_now(self) -> None:
        """An optimizer is about to update the parameters, or the step to be closed: read those whose turn it is."""
        step, self._step = self._step, None
        if step is None or self._layout.world_size < 2:
            return
        wrapper_count = len(self._layout.wrappers)
        is_due = self._assign_at is None or step >= self._assign_at
        is_begun = self._is_by_hand(is_due=is_due)
        if is_due or is_begun or wrapper_count != self._wrapper_count or self._is_any_thawed():
            self._assign_turns()
            self._emit_hook()
            self._assign_at = step + max(self._every, limits.REPLICA_ASSIGN_EVERY)
            self._wrapper_count = wrapper_count
        due = self._turns.get(step % self._every)
        if self._is_first:
            self._is_first, due = False, [turn for turns in self._turns.values() for turn in turns]
        due = due or []
        self._layout.by_hand.before_update(each for turn in due if (each := turn.parameter()) is not None)
        if due:
            for weight, pairs in self._numbered(due).items():
                self._observer.read_checksums(pairs, weight)
            self._watch_reduction(step, due)

    def end_step(self) -> None:
        """Read those whose turn it is, if no optimizer has stepped."""
        self.read_now()

    def _watch_reduction(self, step: int, turns: Collection[Placed]) -> None:
        """Say where updates are made for a while though nobody reduces the gradients: such replicas are not compared,
        since some mean that, and most who forget a switch do not."""
        found = next(((turn, why) for turn in turns if (why := self._why_not(turn)) in (IN_NO_SYNC, NOT_REDUCED)), None)
        was, alone = self._unreduced, self._alone
        first = was.first if was.steps else step
        if found is not None:
            name, axes = was.parameter or sendable(found[0].fqn), was.axes or found[0].alike
            self._unreduced = NotReduced(found[1], name[: limits.NAME_CHARACTERS], first, was.steps + 1, axes)
        elif alone is not None:
            name = was.parameter or sendable(next(iter(turns)).fqn)[: limits.NAME_CHARACTERS]
            self._unreduced = NotReduced(alone[0], name, first, was.steps + 1, alone[1], is_alone=True)
        else:
            self._unreduced = NotReduced()
        is_over = not self._unreduced.steps and was.steps >= UNREDUCED
        if self._unreduced.steps == UNREDUCED or is_over:
            self._events.add(self._unreduced)

    def _why_not(self, placed: Placed) -> str:
        keeper = None if placed.by is None or self._is_alone(placed) else placed.by()
        return "" if keeper is None else why_not(keeper)

    def _emit_hook(self) -> None:
        """Say by which hook of the user's gradients are reduced, if that is another than before."""
        hook = self._layout.own_hook()
        if hook != self._hook:
            self._hook = hook
            self._events.add(CommunicationHook(hook[: limits.NAME_CHARACTERS]))

    def _assign_turns(self) -> None:
        """Give each parameter its turn: every step has about as many bytes to read. A shard counts as the whole: ranks
        that hold others of its parts come to the same turns."""
        placed = self._layout.parameters()
        self._alone = self._layout.alone(placed)
        compared = [each for each in placed if may_be_compared(each)]
        named = (each.parameter() for each in placed)
        self._frozen = [ref(each) for each in named if each is not None and not each.requires_grad]
        parameters = [each.parameter() for each in compared]
        sizes = [0 if each is None else each.numel() * each.element_size() for each in parameters]
        total, self._turns, before = max(sum(sizes), 1), {}, 0
        for each, size in zip(compared, sizes, strict=True):
            self._turns.setdefault(self._every * before // total, []).append(each)
            before += size

    def _is_by_hand(self, *, is_due: bool) -> bool:
        """Whether the loop has begun to reduce gradients itself, or those of more parameters where it is looked."""
        if self._by_hand_count and not is_due:
            return False
        self._layout.find_reduced_by_hand()
        was, self._by_hand_count = self._by_hand_count, self._layout.by_hand.count
        if not was and self._by_hand_count:
            self._events.add(ReducedByHand(self._by_hand_count))
        return self._by_hand_count > was

    def _is_any_thawed(self) -> bool:
        """Whether a frozen parameter is trained by now; of many it is seen later."""
        few = self._frozen if len(self._frozen) <= limits.FROZEN_A_STEP else ()
        return any((parameter := each()) is not None and parameter.requires_grad for each in few)

    def _numbered(self, turns: Collection[Placed]) -> dict[int | None, list[_Pair]]:
        """What is to be read now, each with the number of the row that takes it, by weight: None of what all hold."""
        pairs: dict[int | None, list[_Pair]] = {}
        for turn in turns:
            parameter = turn.parameter()
            if parameter is None or not (self._is_alone(turn) or self._is_kept_alike(turn.by)):
                continue
            # The parameter's own goes into the row of its `grad`: not every run has one of kind `weight`.
            self._add(pairs, turn, "grad", parameter)
            gradient = parameter.grad
            if gradient is not None and not self._is_alone(turn) and self._layout.is_reduced(turn, gradient):
                self._add(pairs, turn, "reduced_grad", gradient)
        return pairs

    def _is_alone(self, placed: Placed) -> bool:
        return self._layout.group_of(placed.alike)[0] < 2

    def _is_kept_alike(self, by: Any) -> bool:
        keeper = None if by is None else by()
        return by is None or (keeper is not None and not why_not(keeper))

    def _add(self, pairs: dict[int | None, list[_Pair]], turn: Placed, kind: str, tensor: Tensor) -> None:
        size, index = self._layout.group_of(turn.alike)
        local = plain_part(tensor)
        if local is None:
            return
        number = self._names.find(turn.fqn, kind, 0, str(local.dtype).removeprefix("torch."))
        if number is not None:
            weight: int | None = 0 if size < 2 else weight_of(size, index)
            weight = None if size == self._layout.world_size else weight
            pairs.setdefault(weight, []).append((number, local.detach()))

    def forward_begins(self) -> None:
        """Look, once a step, for what wraps the model."""
        self._in_forward.remove(self)
        self._search_count += 1
        self._layout.find_wrappers()


class MeshReport(StepReader):
    """Events `mesh` and `placements`: at attach, and where they are others at the ends of the 1st, 2nd, 4th, 8th step
    and so on, since a model may be wrapped after it is attached. Called by the training thread; it reads no tensor.

    Of ranks whose parameters have the same names and placements one sends them: that of 1,024 would be 50 MB.
    """

    def __init__(self, layout: Layout, events: Events) -> None:
        self._layout, self._events = layout, events
        self._step_count = 0
        self._reported: list[Details] = [Mesh(), Placements()]

    def end_step(self) -> None:
        """The open step is about to be closed."""
        self._step_count += 1
        if not self._step_count & (self._step_count - 1):
            self.report()

    def report(self) -> None:
        """Send what has changed."""
        if not self._layout.is_known:
            return
        self._layout.find_wrappers()
        placed = self._layout.parameters()
        axes = self._layout.axes
        if not axes.axes:
            return
        now: list[Details] = [axes.details(), self._layout.details(placed) if axes.is_first else Placements()]
        for each in (details for details, was in zip(now, self._reported, strict=True) if details != was):
            self._events.add(each)
        self._reported = now
