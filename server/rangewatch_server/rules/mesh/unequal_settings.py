"""Ranks that make one update of the model by different learning rates or loss scales, or not all of them.

Which ranks share an update is known from how parameters lie: those along an axis on which any is replicated or sharded.
The stages of a pipeline are not compared with one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.core.text import ranks_text
from rangewatch_server.machines import mesh
from rangewatch_server.machines.mesh import ALL_RANKS
from rangewatch_server.numerics.pyramid import SERIES_PART
from rangewatch_server.rules.evidence import WINDOW, Array, Evidence
from rangewatch_server.rules.replicas.along_axes import mesh_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

STAGES = "pp"
MOST_READ = 256
"""Ranks whose values are read at a step: of more, evenly among all."""


class Setting(msgspec.Struct, frozen=True):
    """What all ranks of an update must have alike. `lasts`: whether it stays different, so that its first step can be
    found by halving."""

    series: str
    noun: str
    lasts: bool
    remedy: Remedy


DECIDED_TOGETHER = (
    "scaler.scale(loss).backward()\n"
    "scaler.unscale_(optimizer)\n"
    "for each in scaler._found_inf_per_device(optimizer).values():  # before scaler.step(optimizer)\n"
    "    torch.distributed.all_reduce(each, op=torch.distributed.ReduceOp.MAX)"
)

SETTINGS = (
    Setting("lr", "learning rate", True, Remedy(
        "Drive every rank's scheduler by the same numbers: the step, or a metric that is reduced over all ranks first. "
        "After a restart load the scheduler's state on every rank.",
        "metric = loss.detach() / torch.distributed.get_world_size()\n"
        "torch.distributed.all_reduce(metric)  # and then scheduler.step(metric)",
        "A scheduler that looks at this rank's own loss, or resumes on some ranks only, parts the ranks.",
    )),
    Setting("loss_scale", "loss scale", True, Remedy(
        "Let all ranks decide together whether a step overflowed: with sharded gradients each rank sees its own part.",
        DECIDED_TOGETHER,
        "Gradients that are scaled differently are added up as if they were not.",
    )),
    Setting("skipped_step", "skipped update", False, Remedy(
        "Let all ranks skip a step, or none: reduce what is found to overflow over the ranks of the update.",
        DECIDED_TOGETHER,
        "A rank that skips alone is one optimizer step behind from then on, and its bias correction another.",
    )),
)  # fmt: skip


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """One for each setting."""
    if len(evidence.ranks) < 2:
        return
    lines = _lines(evidence)
    if not any(len(line) > 1 for line in lines):
        return
    for setting in SETTINGS:
        if evidence.has_series(setting.series):
            yield from _of_setting(evidence, setting, lines)


def _lines(evidence: Evidence) -> list[tuple[int, ...]]:
    """Ranks that make an update together."""
    placements = evidence.once("placements", lambda: mesh.placements_of(evidence.run))
    axes = {name for each in placements.values() for group in each.groups for name in (*group.axes, *group.alike)}
    along = axes - {STAGES}
    known = mesh_of(evidence)
    if ALL_RANKS in along and any(name == STAGES for name, _ in known.axes):
        along.discard(ALL_RANKS)
    return known.groups_along(along, [rank for rank in evidence.ranks if rank in known.members]) if along else []


def _of_setting(evidence: Evidence, setting: Setting, lines: Sequence[tuple[int, ...]]) -> Iterable[Finding]:
    stop = evidence.whole_stop
    start = max(evidence.start, stop - WINDOW, _started(evidence))
    differs = _differs(evidence, setting.series, start, stop)
    for step in (start + np.flatnonzero(differs)[[0, -1]]).tolist() if differs.any() else ():
        odd = _odd(evidence, setting.series, step, lines)
        if odd:
            break
    else:
        return
    is_before = False
    if setting.lasts and step == start and start > max(evidence.start, _started(evidence)):
        step = _first(evidence, setting.series, max(evidence.start, _started(evidence)), step)
        is_before = step == max(evidence.start, _started(evidence))
        odd = _odd(evidence, setting.series, step, lines) or odd
    yield _finding(evidence, setting, step, odd, is_before=is_before)


def _started(evidence: Evidence) -> int:
    """The first step that the newest process of every rank has."""
    firsts = (row.first_step for rank in evidence.ranks for row, _ in evidence.run.ranks[rank].visible()[:1])
    return max(firsts, default=0)


def _differs(evidence: Evidence, series: str, start: int, stop: int) -> Array:
    """(n,) whether any two ranks have different values at a step."""
    if start >= stop:
        return np.zeros(0, bool)
    rows = np.array([evidence.run.names().series[series]])
    block = evidence.run.slice(
        SERIES_PART, list(evidence.ranks), 0, start, stop, ("count", "nonfinite_count", "max", "min"), rows
    )
    count, bad, most, least = (
        np.asarray(block.columns[name][0]) for name in ("count", "nonfinite_count", "max", "min")
    )
    return np.asarray((count > 1) & (bad == 0) & (most != least))


def _first(evidence: Evidence, series: str, low: int, step: int) -> int:
    """The first step from which they differ, given that they do at `step`."""
    good, bad = low - 1, step
    while bad - good > 1:
        deadline.check()
        middle = (good + bad) // 2
        if _differs(evidence, series, middle, middle + 1)[0]:
            bad = middle
        else:
            good = middle
    return bad


def _odd(evidence: Evidence, series: str, step: int, lines: Sequence[tuple[int, ...]]) -> list[dict[float, list[int]]]:
    """Of each line in which ranks differ: value -> its ranks, the most first."""
    total = sum(map(len, lines))
    found = []
    for line in lines:
        every = -(-total // MOST_READ)
        values = _values(evidence, series, step, line[::every] if every < len(line) else line)
        if len(values) > 1:
            found.append(dict(sorted(values.items(), key=lambda each: -len(each[1]))))
    return found


def _values(evidence: Evidence, series: str, step: int, ranks: Sequence[int]) -> Mapping[float, list[int]]:
    by_value: dict[float, list[int]] = {}
    for rank in ranks:
        deadline.check()
        value = float(evidence.series(series, step, step + 1, rank=rank)[0])
        if np.isfinite(value):
            by_value.setdefault(value, []).append(rank)
    return by_value


def _finding(
    evidence: Evidence, setting: Setting, step: int, odd: list[dict[float, list[int]]], *, is_before: bool
) -> Finding:
    values = odd[0]
    (usual, most), *others = values.items()
    ranks = sorted(rank for _, those in others for rank in those)
    everyone = sorted(rank for those in values.values() for rank in those)
    is_clear = 2 * len(most) > len(everyone)
    where = f"Step {step}{' or before' if is_before else ''}"
    known = mesh_of(evidence)
    place = f" ({text})" if len(ranks) == 1 and (text := known.place_text(ranks[0])) else ""
    if setting.series == "skipped_step":
        skipped, made = values.get(1.0, []), values.get(0.0, [])
        summary = f"{where}: {ranks_text(skipped)} skipped the update that {ranks_text(made)} made."
    elif is_clear:
        summary = (
            f"{where}, {ranks_text(ranks)}{place}: the {setting.noun} is {_text(others[0][0])}, and {_text(usual)} on "
            f"the other {len(most)} ranks of the update."
        )
    else:
        shown = "; ".join(f"{_text(value)} on {ranks_text(those)}" for value, those in list(values.items())[:4])
        summary = f"{where}: ranks of one update have different values of the {setting.noun}: {shown}."
    evidences = [f"They make one update together: their parameters are replicated or sharded along {_axes(known)}."]
    if len(odd) > 1:
        evidences.append(f"Ranks differ in {len(odd)} groups of ranks that make an update together.")
    return Finding(
        rank=ranks[0] if len(ranks) == 1 and is_clear else None, step=step, subject=setting.series, summary=summary,
        evidence=tuple(evidences), remedy=(setting.remedy,),
        facts={"series": setting.series, "ranks": ranks if is_clear else everyone},
    )  # fmt: skip


def _axes(known: mesh.Mesh) -> str:
    names = [name for name, size in known.axes if size > 1 and name not in known.joined and name != STAGES]
    return " and ".join(names) or "all ranks"


def _text(value: float) -> str:
    return f"{value:.6g}"


RULE = Rule(
    name="unequal_settings",
    title="Ranks update differently",
    severity="critical",
    explanation="Ranks that hold parts or copies of the same parameters make one update together: by the same learning "
    "rate, at the same loss scale, and all of them or none. A rank that does otherwise trains another model from then "
    "on, though its loss may look right for a long time.",
    check=check,
    explains=("replica_mismatch",),
)
