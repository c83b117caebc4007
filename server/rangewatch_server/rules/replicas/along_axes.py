"""What only the ranks along some axes of a mesh hold alike: which of them differ, and since which step.

Each rank weights its checksum so that those of ranks that are alike add up to 0, see `AXIS_BALANCE`: the sum of
all ranks, which is kept merged, shows at which steps anybody differs. Who does is asked of single ranks then.
"""

from __future__ import annotations

import numpy as np

from rangewatch.statistics import AXIS_MODULUS
from rangewatch_server.core import deadline
from rangewatch_server.machines import mesh
from rangewatch_server.machines.mesh import Mesh
from rangewatch_server.rules.evidence import Array, Evidence
from rangewatch_server.rules.replicas.search import Difference, Replicas

CHECKSUM, BALANCE = "axis_checksum", "axis_balance"

Ranks = tuple[int, ...]

MOST_SEARCHED = 64
"""Ranks of those that differ whose first step is searched for."""

MOST_ALSO = 16


class AxisReplicas(Replicas):
    """The checksums of what is alike along axes."""

    COLUMNS = (CHECKSUM, BALANCE)

    def __init__(self, evidence: Evidence) -> None:
        super().__init__(evidence)
        entries = evidence.tensors.entries
        placements = evidence.once("placements", lambda: mesh.placements_of(evidence.run))
        kinds = {id(each): each for each in placements.values()}.values()
        alike = {name for each in kinds for name in each.parameters if mesh.alike_along(each, name)}
        mine = [row for row in self._rows.tolist() if entries[row].fqn in alike]  # others are alike on no other rank
        self._rows = np.array(mine, np.int64)
        self._lines: list[Ranks] = []
        """Ranks that should be alike in the tensor that is searched for, of those that differ at its newest step."""

    def difference(self, tensor: int, step: int) -> Difference | None:
        axes = self._axes(tensor)
        if not axes:  # what ranks should be alike in is not known any more
            return None
        held = self._held(tensor, step, self._evidence.ranks)
        lines = mesh_of(self._evidence).groups_along(axes, held)
        odd_lines = [line for line in lines if len({held[rank] for rank in line}) > 1]
        if not odd_lines:
            return None
        self._lines = _cut(odd_lines)
        first, alike = self._first(tensor, step)
        held = self._held(tensor, first, [rank for line in self._lines for rank in line])
        odd = [groups for line in self._lines if len(groups := _by_value(held, line)) > 1]
        if not odd:
            return None
        per = self._evidence.run.steps_a_row(self._evidence.ranks, first, first + 1)
        also = tuple(tuple(sorted(rank for group in groups for rank in group)) for groups in odd[1:])
        count = sum(len(line) > 1 for line in lines)
        odd_count = len(odd) + len(odd_lines) - len(self._lines)
        return Difference(tensor, first, alike, odd[0], per, axes, also, count, odd_count)

    def _axes(self, tensor: int) -> tuple[str, ...]:
        """As the first rank says that holds the parameter."""
        placements = self._evidence.once("placements", lambda: mesh.placements_of(self._evidence.run))
        fqn = self._evidence.tensors.entries[tensor].fqn
        said = (mesh.alike_along(placements[rank], fqn) for rank in self._evidence.ranks if rank in placements)
        return next((axes for axes in said if axes), ())

    def _newest(self, tensor: int, start: int, stop: int) -> tuple[int, bool] | None:
        """Whether any differ is asked of the ranks themselves: the sum is not 0 either where one has not read."""
        newest = super()._newest(tensor, start, stop)
        if newest is None or not newest[1]:
            return newest
        held = self._held(tensor, newest[0], [rank for line in self._lines for rank in line])
        return newest[0], any(len(_by_value(held, line)) > 1 for line in self._lines)

    def _held(self, tensor: int, step: int, ranks: Ranks | list[int]) -> dict[int, float]:
        """Rank -> its checksum, of those that have one."""
        held = {}
        for rank in self.started_alike(ranks):
            deadline.check()
            value = float(self._evidence.row(tensor, rank, step, step + 1, (CHECKSUM,))[CHECKSUM][0])
            if value > 0:
                held[rank] = value
        return held

    def _differ(self, first: Array, second: Array) -> Array:
        return np.asarray(second % AXIS_MODULUS != 0)


def mesh_of(evidence: Evidence) -> Mesh:
    """The run's mesh."""
    known: Mesh = evidence.once("mesh", lambda: mesh.mesh_of(evidence.run))
    return known


def _by_value(held: dict[int, float], line: Ranks) -> tuple[Ranks, ...]:
    """Ranks by what they hold, the largest group first."""
    groups: dict[float, list[int]] = {}
    for rank in line:
        if rank in held:
            groups.setdefault(held[rank], []).append(rank)
    return tuple(sorted(map(tuple, groups.values()), key=lambda group: (-len(group), group)))


def _cut(lines: list[Ranks]) -> list[Ranks]:
    """The first of them, at least one."""
    shown, left = lines[:1], MOST_SEARCHED
    for line in lines[1 : MOST_ALSO + 1]:
        left -= len(line)
        if left >= 0:
            shown.append(line)
    return shown
