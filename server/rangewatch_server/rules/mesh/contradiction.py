"""Ranks that contradict one another, or themselves, in where they stand on the mesh."""

from __future__ import annotations

from collections.abc import Iterable

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.replicas.along_axes import mesh_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding."""
    problems = mesh_of(evidence).problems
    if problems:
        ranks = tuple(sorted({rank for each in problems for rank in each.ranks}))
        more = f" And {len(problems) - 1} more such." if len(problems) > 1 else ""
        yield Finding(
            rank=ranks[0] if len(ranks) == 1 else None, step=None, subject="mesh", summary=problems[0].text + more,
            evidence=tuple(each.text for each in problems[1:]),
            remedy=(
                Remedy(
                    "Make the mesh, or the process groups, by the same call on all ranks, and declare to attach what "
                    "they are; groups of ranks that differ hang, or reduce over the wrong ones without a word.",
                    "mesh = torch.distributed.device_mesh.init_device_mesh(  # on GPUs 'cuda'; alike on every rank\n"
                    "    'cpu', (torch.distributed.get_world_size(), 1), mesh_dim_names=('dp', 'tp'))",
                    "What ranks say of the same axis cannot all be true.",
                ),
            ),
            facts={"ranks": ranks},
        )  # fmt: skip


RULE = Rule(
    name="mesh_contradiction",
    title="Ranks contradict one another on the mesh",
    severity="warning",
    explanation="Each rank says which ranks it shares an axis of the mesh with. Where two ranks name different ones, "
    "or the mesh that was declared is not the one of the model, reductions reach the wrong ranks or hang; and what is "
    "compared along that axis, or shown by it, cannot be relied on.",
    check=check,
)
