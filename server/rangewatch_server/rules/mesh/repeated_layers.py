"""Layers of a pipeline's stage that begin as the very bits of another stage's: a checkpoint read by local names.

From the checksums that ranks read at their first update, before it, of the ranks of one line along the pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.core.text import ranks_text
from rangewatch_server.machines.mesh import Ranks
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Array, Evidence
from rangewatch_server.rules.mesh import values
from rangewatch_server.rules.mesh.values import STAGES
from rangewatch_server.rules.replicas.along_axes import CHECKSUM, mesh_of
from rangewatch_server.rules.replicas.search import LARGEST
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

MOST_STAGES = 64
LEAST_MATRICES = 2
"""Of a layer: one alone may begin as zeros, or be a small table that is the same for a reason."""

Layers = Mapping[str, Mapping[float, str]]
"""Layer -> checksum -> the parameter that has it."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding."""
    known = mesh_of(evidence)
    axes = values.axes_of(known, STAGES)
    lines = values.groups_but(known, axes[:1], evidence.ranks) if axes else []
    rows = _matrices(evidence)
    if not lines or not len(rows):
        return
    line = sorted(lines[0], key=lambda rank: known.coordinates(rank)[axes[0]])[:MOST_STAGES]
    step = values.started(evidence)
    layers = [_layers(evidence, rank, step, rows) for rank in line]
    found = [
        (first, second, names)
        for second in range(1, len(line))
        for first in range(second)
        if (names := _repeated(layers[first], layers[second]))
    ]
    if found:
        yield _finding(line, axes[0], step, found, len(lines))


def _matrices(evidence: Evidence) -> Array:
    """Rows of the parameters of numbered layers that are no vectors: those begin as ones and zeros in all of them."""
    names = set(evidence.run.names().fill[RANGES])
    if not {CHECKSUM, LARGEST} & names:
        return np.zeros(0, np.int64)
    entries = enumerate(evidence.tensors.entries)
    return np.array([at for at, each in entries if each.kind == "grad" and len(each.shape) > 1 and _layer(each.fqn)])


def _layer(parameter: str) -> str:
    """Its name up to the first number; "" where it has none."""
    parts = parameter.split(".")
    number = next((at for at, part in enumerate(parts[:-1]) if part.isdigit()), None)
    return "" if number is None else ".".join(parts[: number + 1])


def _layers(evidence: Evidence, rank: int, step: int, rows: Array) -> Layers:
    """Of those whose matrices were all read at the step, and are all different."""
    deadline.check()
    wanted = tuple(name for name in (CHECKSUM, LARGEST) if name in evidence.run.names().fill[RANGES])
    block = evidence.run.slice(RANGES, [rank], 0, step, step + 1, wanted, rows)
    held = np.max([np.asarray(block.columns[name])[:, 0] for name in wanted], axis=0)
    entries, layers = evidence.tensors.entries, defaultdict[str, dict[float, str]](dict)
    odd = set()
    for row, value in zip(rows.tolist(), held.tolist(), strict=True):
        layer = _layer(entries[row].fqn)
        if value > 0 and value in layers[layer]:
            odd.add(layer)  # both are zeros, or another constant
        elif value > 0:
            layers[layer][value] = entries[row].fqn
    return {name: known for name, known in layers.items() if len(known) >= LEAST_MATRICES and name not in odd}


def _repeated(first: Layers, second: Layers) -> dict[str, str]:
    """Layer of the second stage -> the layer of the first that is the same in each matrix."""
    by_bits = {frozenset(known): name for name, known in first.items()}
    return {name: by_bits[bits] for name, known in second.items() if (bits := frozenset(known)) in by_bits}


def _finding(
    line: Sequence[int], axis: str, step: int, found: Sequence[tuple[int, int, Mapping[str, str]]], lines: int
) -> Finding:
    first, second, names = found[0]
    (layer, same), count = next(iter(names.items())), len(names)
    more = f", and {count - 1} more so" if count > 1 else ""
    stages = sorted({stage for pair in found for stage in pair[:2]})
    ranks: Ranks = tuple(line[stage] for stage in stages)
    return Finding(
        rank=None, step=step, tensor=layer, kind="grad", subject="layers",
        summary=f"Step {step}, along {axis}: stage {second} (rank {line[second]}) begins with layers of stage {first} "
        f"(rank {line[first]}): its {layer} is bit for bit the other's {same}{more}.",
        evidence=(
            f"Compared were checksums of all matrices of these layers on {ranks_text(ranks)}, right before the first "
            "update.",
            *((f"{len(found)} pairs of stages are so.",) if len(found) > 1 else ()),
            *((f"Looked at was one of {lines} lines along {axis}.",) if lines > 1 else ()),
        ),
        remedy=(
            Remedy(
                "Save and load the layers under the names of the whole model, not under those that count from 0 on "
                "each stage; and where weights are drawn, draw each stage's from a seed of its own. If layers are "
                "stacked from copies on purpose, silence this finding.",
                "stage, per_stage = 1, 8  # this stage's number, and how many layers each has\n"
                "state = {name.replace(f'layers.{at}.', f'layers.{stage * per_stage + at}.', 1): value\n"
                "         for name, value in model.state_dict().items()\n"
                "         for at in range(per_stage) if f'layers.{at}.' in name}",
                "the weights' own bits were compared",
            ),
        ),
        facts={"axes": (axis,), "ranks": list(ranks), "layers": dict(list(names.items())[:8])},
    )  # fmt: skip


RULE = Rule(
    name="repeated_layers",
    title="A stage holds another's layers",
    severity="warning",
    explanation="Where each stage of a pipeline counts its layers from 0, a checkpoint that is loaded into another "
    "number of stages fills all of them with the first one's layers, and a seed that is the same on all stages draws "
    "the same weights for each. Nothing fails, and the model learns on from there. Compared are the matrices of "
    "numbered layers right before the first update: a layer counts where each of two or more is the same.",
    check=check,
)
