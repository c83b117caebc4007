"""How the ranks of a replicated model fall into those that hold the same."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rangewatch_server.core import deadline
from rangewatch_server.rules.evidence import Evidence

LARGEST, SMALLEST = "checksum_max", "checksum_min"
"""One reading sets both, see `statistics`."""


class Difference(msgspec.Struct, frozen=True):
    """A tensor's replicas: alike at the step `alike` (None: at none that is stored), and not at `step`, the next read.

    `groups`: ranks that hold the same, the largest group first. `per`: steps that share the row of `step`.
    """

    tensor: int
    step: int
    alike: int | None
    groups: tuple[tuple[int, ...], ...]
    per: int = 1

    @property
    def majority(self) -> tuple[int, ...]:
        """More than half of the ranks; none where no group has that many."""
        largest = self.groups[0]
        return largest if 2 * len(largest) > sum(map(len, self.groups)) else ()

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that are not of the majority; none where there is no majority."""
        return tuple(sorted(rank for group in self.groups[1:] for rank in group)) if self.majority else ()


class Incarnation(msgspec.Struct, frozen=True):
    """Which start of a rank's process is shown at the last step, and from which step on."""

    ordinal: int
    first_step: int


def incarnations(evidence: Evidence) -> dict[int, Incarnation]:
    """By rank, of those that have told any step."""
    found = {}
    for rank in evidence.ranks:
        rows = (row for row, _ in evidence.run.ranks[rank].visible() if row.first_step < evidence.whole_stop)
        newest = next(rows, None)
        if newest is not None:
            found[rank] = Incarnation(newest.ordinal, newest.first_step)
    return found


def groups_of(
    evidence: Evidence, started: Mapping[int, Incarnation], tensor: int, step: int
) -> tuple[tuple[int, ...], ...]:
    """Ranks by what they hold of a tensor at a step, the largest group first.

    Only of those that were started equally often, which most are: one that has been started anew tells steps again that
    the others' older processes told, and these say nothing of it.
    """
    held: dict[float, list[int]] = {}
    for rank in _started_alike(started):
        deadline.check()
        found = evidence.row(tensor, rank, step, step + 1, (LARGEST, SMALLEST))
        if found[LARGEST][0] > 0 and found[LARGEST][0] == found[SMALLEST][0]:
            held.setdefault(float(found[LARGEST][0]), []).append(rank)
    return tuple(sorted(map(tuple, held.values()), key=lambda group: (-len(group), group)))


def _started_alike(started: Mapping[int, Incarnation]) -> list[int]:
    ordinals = [each.ordinal for each in started.values()]
    usual = max(ordinals, key=lambda each: (ordinals.count(each), each))
    return [rank for rank, each in started.items() if each.ordinal == usual]
