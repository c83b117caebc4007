"""When each parameter was last compared between the ranks that must hold the same of it; what never was is shown so.

From the checksums that ranks have sent and from what they say of how parameters lie: docs/mesh.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from rangewatch.wire.events import Placements
from rangewatch_server.machines.mesh import ALL_RANKS, alike_along, mesh_of, placements_of
from rangewatch_server.query.reader import RunReader
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.mesh.values import STAGES, role
from rangewatch_server.rules.replicas.along_axes import AxisReplicas
from rangewatch_server.rules.replicas.search import Replicas

MOST_LISTED = 5_000
"""Parameters that are listed; all are counted."""

State = Literal["compared", "never", "parts", "unknown"]


class Compared(msgspec.Struct, frozen=True):
    """A parameter. `state`: "compared"; "never", though ranks hold the same of it; "parts", where each rank has another
    part; "unknown", where nobody says how it lies. `alike`: the axes along which it must be the same, `unknown_axes`
    those of which that is not known. `step`, `gradient_step`: when it was last compared, and its reduced gradient."""

    parameter: str
    state: State
    alike: tuple[str, ...]
    unknown_axes: tuple[str, ...]
    step: int | None
    gradient_step: int | None


def replicas(run: RunReader) -> dict[str, Any]:
    """The answer of docs/api.md."""
    found = list(_parameters(run)) if len(run.ranks) > 1 else []
    steps = [each.step for each in found if each.step is not None]
    return {
        "stop": Evidence(run).whole_stop,
        "parameters": [msgspec.to_builtins(each) for each in found[:MOST_LISTED]],
        "counts": Counter(each.state for each in found),
        "oldest_step": min(steps, default=None),
    }


def _parameters(run: RunReader) -> Iterator[Compared]:
    evidence = Evidence(run)
    entries = evidence.tensors.entries
    everywhere, along = Replicas(evidence).newest_steps(), AxisReplicas(evidence).newest_steps()
    steps = {(entries[row].fqn, entries[row].kind): step for row, step in (everywhere | along).items()}
    by_all = {entries[row].fqn for row in everywhere}
    known, placements = mesh_of(run), placements_of(run)
    said = {id(each): each for _, each in sorted(placements.items())}.values()
    named = dict.fromkeys([*(name for each in said for name in each.parameters), *(name for name, _ in steps)])
    where = [name for name, size in known.axes if size > 1 and name not in known.joined and role(name) != STAGES]
    for name in named:
        axes, alike = _as_said(said, name)
        if not alike and name in by_all:
            alike = (ALL_RANKS,)
        step, gradient_step = steps.get((name, "grad")), steps.get((name, "reduced_grad"))
        unknown = () if ALL_RANKS in alike else tuple(axis for axis in where if axis not in axes)
        yield Compared(name, _state(step, alike, axes, unknown), alike, unknown, step, gradient_step)


def _as_said(said: Any, name: str) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Axis -> placement, and the axes along which it must be the same: of the first rank that holds it."""
    first: Placements | None = next((each for each in said if name in each.parameters), None)
    if first is None or first.parameters[name] >= len(first.groups):
        return {}, ()
    return first.groups[first.parameters[name]].axes, alike_along(first, name)


def _state(step: int | None, alike: tuple[str, ...], axes: Mapping[str, str], unknown: tuple[str, ...]) -> State:
    if step is not None and alike:
        return "compared"
    if alike or "replicate" in axes.values():
        return "never"
    return "unknown" if unknown or not axes else "parts"
