"""What is kept up to date of a recording while it runs, so that it can be read once the process is dead.

`crash.memory` has it in memory that outlives the process. Nothing here knows how: the recording calls a `Mirror`.

Where the training thread is are whole numbers in cells, which it stores into: `STEP`, `PHASE` and `TENSOR`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Protocol

from rangewatch.recording.phase_times import OTHER, PHASES
from rangewatch.wire.records import Event, FloatArray, TensorEntry

STEP, PHASE, TENSOR = 1, 2, 3
"""Cells: the open step; the phase (a place in `PHASE_NAMES`); the number of the tensor last recorded in the open step,
-1 for none."""

PHASE_NAMES = (OTHER, *(phase for phase in PHASES if phase != OTHER))
PHASE_NUMBERS = {phase: number for number, phase in enumerate(PHASE_NAMES)}


def own_cells() -> Any:
    """Cells that nobody else reads."""
    return array("q", bytes(8 * (TENSOR + 1)))


class StepStore(Protocol):
    """Where the rows of closed steps lie, in blocks, until the spool has them. Called by the training thread."""

    @property
    def slots(self) -> int:
        """Steps that the block being filled has room for; 0 before the first `reserve`."""

    @property
    def capacity(self) -> int:
        """Tensors that it has room for."""

    def reserve(self, slots: int, capacity: int) -> None:
        """Make room in the block being filled; the steps in it stay."""

    def close(self, step: int, columns: Iterable[array[float]], count: int, *, is_traced: bool) -> None:
        """A step is over: its statistics, a column of `count` tensors each."""

    def copy(self, tensors: int, identities: FloatArray) -> FloatArray:
        """The block's rows: (statistics, steps, tensors) float64. `identities`: of what was not there yet."""

    def next_block(self) -> int:
        """Begin another block; the number of the one that was filled."""


class Group(Protocol):
    """A process group, as its collectives are stored."""

    name: str
    desc: str
    ranks: list[int]
    knows_ends: bool
    """Whether anybody says when a collective has ended."""
    completed: int
    """Sequence of this rank's last collective that has ended."""


class Collective(Protocol):
    """A collective that this rank has called."""

    sequence: int

    @property
    def op(self) -> str:
        """Its name, such as all_reduce."""


class Mirror(Protocol):
    """Is called with all that a recording does, as it does it. Nothing of it raises or waits."""

    cells: Any
    """Of int64, see `STEP`, `PHASE` and `TENSOR`."""

    @property
    def steps(self) -> StepStore:
        """The rows of closed steps."""

    def open_step(self, step: int) -> None:
        """`step` is open, and nothing recorded in it. From the training thread."""

    def tensor(self, number: int, entry: TensorEntry) -> None:
        """The catalogue has a tensor more. From the training thread."""

    def series(self, name: str, step: int, value: float) -> None:
        """A value of a series was recorded. From the training thread."""

    def event(self, event: Event) -> int:
        """Something happened that is to be shipped; how many events there were with it. From any thread."""

    def sending(self, sequence: int, mark: object) -> None:
        """A batch is about to be put into the spool, and with it what `mark` says: (block, events)."""

    def sent(self) -> None:
        """The batch of the last `sending` is safe."""

    def collective_called(self, group: Group, record: Collective) -> None:
        """From the thread that calls it."""

    def collective_ended(self, group: Group) -> None:
        """From any thread."""
