"""Reads checksums of what all ranks must hold alike, for the server to compare: no collective, and no waiting.

When the step's first update is about to be made, which is the same point on every rank: a value that differs has not
yet spread to the others as NaN, which would make all alike again. Each parameter has its turn once in `every` steps, by
the step's number alone, so that all ranks read the same ones though one of them was started anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple
from weakref import ref

from torch import Tensor, nn

from rangewatch import limits
from rangewatch.observer import Observer
from rangewatch.replicated import Replicated, is_whole
from rangewatch.tensor_names import TensorNames


class Turn(NamedTuple):
    """A parameter that is read in one of each `every` steps, and what wraps it."""

    fqn: str
    parameter: ref[nn.Parameter]
    wrapper: ref[Any] | None


class ReplicaReads:
    """Called around each step. `every`: see `Options.replica_every`; `in_forward`: see `Agent`."""

    def __init__(
        self, observer: Observer, names: TensorNames, replicated: Replicated, every: int,
        in_forward: list[Callable[[], None]],
    ) -> None:  # fmt: skip
        self._observer, self._names, self._replicated, self._every = observer, names, replicated, every
        self._turns: dict[int, list[Turn]] = {}
        self._step: int | None = None
        """The open step, until it has been read."""
        self._look_at: int | None = None
        self._looks = 0
        self._in_forward = in_forward

    def begin_step(self, step: int) -> None:
        """`step` is open: look in its forward for what wraps the model, unless that is known."""
        self._step = step
        is_wanted = not self._replicated.is_found and self._looks < limits.REPLICA_LOOKS
        if is_wanted and self._look_for_wrapper not in self._in_forward:
            self._in_forward.append(self._look_for_wrapper)

    def read_now(self) -> None:
        """An optimizer is about to update the parameters, or the step to be closed: read those whose turn it is."""
        step, self._step = self._step, None
        if step is None or not self._replicated.is_found:
            return
        if self._look_at is None or step >= self._look_at:
            self._look()
            self._look_at = step + max(self._every, limits.REPLICA_LOOK_EVERY)
        due = self._turns.get(step % self._every)
        if due:
            self._observer.read_checksums(self._numbered(due))

    def _look(self) -> None:
        """Give each parameter its turn: every step has about as many bytes to read."""
        found = list(self._replicated.parameters())
        total = sum(parameter.nbytes for _, parameter, _ in found)
        self._turns, before = {}, 0
        for fqn, parameter, wrapper in found:
            turns = self._turns.setdefault(self._every * before // max(total, 1), [])
            turns.append(Turn(fqn, ref(parameter), wrapper))
            before += parameter.nbytes

    def _numbered(self, turns: Collection[Turn]) -> Iterator[tuple[int, Tensor]]:
        """What is to be read now, each with the number of the row that takes it."""
        alike = {wrapper: self._replicated.are_alike(wrapper) for wrapper in {each.wrapper for each in turns}}
        for turn in turns:
            parameter = turn.parameter()
            if parameter is None or not alike[turn.wrapper]:
                continue
            # The parameter's own goes into the row of its `grad`: not every run has one of kind `weight`.
            for kind, tensor in (("grad", parameter), ("reduced_grad", parameter.grad)):
                if tensor is not None and is_whole(tensor):
                    number = self._names.find(turn.fqn, kind, 0, str(tensor.dtype).removeprefix("torch."))
                    if number is not None and tensor.numel():
                        yield number, tensor.detach()

    def _look_for_wrapper(self) -> None:
        """Once a step."""
        self._in_forward.remove(self._look_for_wrapper)
        self._looks += 1
        self._replicated.look()
