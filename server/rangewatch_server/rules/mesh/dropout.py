"""Dropout that drops other elements on ranks that compute the same, or the same ones on all ranks of other data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rangewatch.wire.events import Dropouts
from rangewatch_server.core.text import ranks_text
from rangewatch_server.machines.mesh import Mesh, Ranks
from rangewatch_server.rules.evidence import WINDOW, Evidence
from rangewatch_server.rules.mesh import values
from rangewatch_server.rules.mesh.values import DATA, SEQUENCE, TENSOR
from rangewatch_server.rules.replicas.along_axes import mesh_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

GENERATOR, GIVEN, MADE = "generator_checksum", "dropout_input_checksum", "dropout_output_checksum"

MOST_STEPS = 12
"""The last ones that are looked at: each is of one dropout."""

MOST_READ = 64
"""Ranks whose masks are read at each of them."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one of each: masks that differ, and generators that are alike."""
    known = mesh_of(evidence)
    if len(evidence.ranks) < 2 or not known.places or not evidence.has_series(MADE):
        return
    start, stop = values.started(evidence), evidence.whole_stop
    last = values.newest(evidence, MADE, start, stop)
    if last is None:
        return
    steps = values.steps_with(evidence, MADE, max(start, last + 1 - WINDOW), last + 1)[-MOST_STEPS:]
    for axis in values.axes_of(known, TENSOR):
        groups = values.cut(values.groups_but(known, (axis,), evidence.ranks), MOST_READ)
        found = next(((step, odd) for step in reversed(steps) if (odd := _differing(evidence, step, groups))), None)
        if found is not None:
            yield _differ(evidence, known, axis, *found)
    yield from _alike(evidence, known, last)


def _differing(evidence: Evidence, step: int, groups: Sequence[Ranks]) -> tuple[Ranks, ...]:
    """Those in which ranks were given the same and made other things of it."""
    ranks = [rank for group in groups for rank in group]
    made = values.at(evidence, MADE, step, ranks)
    odd: list[Ranks] = []
    if all(len(values.by_value(made, group)) < 2 for group in groups):
        return ()
    given = values.at(evidence, GIVEN, step, ranks)
    for group in groups:
        for same in values.by_value(given, group):
            if len(same) > 1 and len(values.by_value(made, same)) > 1:
                odd.append(same)
    return tuple(odd)


def _differ(evidence: Evidence, known: Mesh, axis: str, step: int, odd: tuple[Ranks, ...]) -> Finding:
    first, right = values.since(evidence, MADE, step, lambda at: bool(_differing(evidence, at, odd[:1])))
    name = _name(evidence, first)
    ranks = sorted(rank for group in odd for rank in group)
    more = f" So it is on {ranks_text(odd[1])}{' and others' if len(odd) > 2 else ''}." if len(odd) > 1 else ""
    return Finding(
        rank=None, step=first, tensor=name, kind="output" if name else None, subject=f"masks along {axis}",
        summary=f"Step {first}, along {axis}: {ranks_text(odd[0])} give {name or 'a dropout'} the same, and it drops "
        "other elements on each.",
        evidence=(
            f"Checksums of what went into the dropout were the same, and those of what came out were not.{more}",
            values.when_text(first, right),
            "From there on the ranks hold different activations where one model has one, and add up gradients of both.",
        ),
        remedy=(
            Remedy(
                f"Let ranks along {axis} draw the same random numbers where activations are replicated: seed them "
                "alike, by the place along the data-parallel and pipeline axes, and not by the rank. Where activations "
                "are sharded, as in sequence parallelism, they are to draw others.",
                f"index = 0  # the place along the data-parallel axes: the same along {axis}\n"
                "torch.manual_seed(1234 + index)",
                "the dropout's own inputs and outputs were compared",
            ),
        ),
        facts={"axes": (axis,), "ranks": ranks, "groups": [list(each) for each in odd], "last_right_step": right},
    )  # fmt: skip


def _name(evidence: Evidence, step: int) -> str | None:
    """Of the dropout whose turn it was."""
    known = next((details for _, details in reversed(evidence.details(Dropouts)) if details.names), None)
    return None if known is None else known.names[step // known.every % len(known.names)]


def _alike(evidence: Evidence, known: Mesh, step: int) -> Iterable[Finding]:
    """Ranks of other data, or of other parts of a sequence, that draw the same masks: allowed, and seldom meant."""
    axes = values.axes_of(known, DATA, SEQUENCE)
    groups = values.cut(values.groups_but(known, axes, evidence.ranks), MOST_READ) if axes else []
    held = values.at(evidence, GENERATOR, step, [rank for group in groups for rank in group])
    same = [each for group in groups for each in values.by_value(held, group) if len(each) > 1]
    if same:
        along = " and ".join(axes)
        yield Finding(
            severity="info", rank=None, step=step, subject="same masks",
            summary=f"Step {step}, along {along}: {ranks_text(same[0])} draw the same random numbers for dropout.",
            evidence=("The generators' states were the same where the step's first forward began.",
                      "Nothing is wrong by that alone: masks of different data could be more varied."),
            remedy=(
                Remedy("Seed by the place along the data-parallel axes, if more varied masks are wanted.",
                       "torch.manual_seed(1234 + torch.distributed.get_rank())",
                       "the generators' states were compared"),
            ),
            facts={"axes": axes, "ranks": list(same[0])},
        )  # fmt: skip


RULE = Rule(
    name="dropout_mismatch",
    title="Dropout does not fit the mesh",
    severity="critical",
    explanation="Where tensor-parallel ranks hold the same activations they must drop the same elements: a mask of "
    "each rank's own makes them compute different models. It is seen where one of the model's dropout modules is given "
    "the same on ranks along tp and makes different things of it; one dropout a turn is compared, at three steps in "
    "`replica_every`. Dropout inside a function or a compiled region is not seen, and nothing is said of it.",
    check=check,
    explains=("replica_mismatch",),
)
