"""Ranks that make one update of the model by different learning rates or loss scales, or not all of them.

Which ranks share an update is known from how parameters lie: those along an axis on which any is replicated or sharded.
The stages of a pipeline are not compared with one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec.structs
import numpy as np

from rangewatch.wire.events import Optimizers
from rangewatch_server.core.text import ranks_text
from rangewatch_server.machines import mesh
from rangewatch_server.machines.mesh import ALL_RANKS
from rangewatch_server.rules.evidence import WINDOW, Array, Evidence
from rangewatch_server.rules.mesh import values as of_ranks
from rangewatch_server.rules.replicas.along_axes import mesh_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

STAGES = "pp"

MOST_GROUPS, MOST_GROUPS_NAMED = 16, 4
"""Parameter groups that have a series each, and those that a finding names."""


class Setting(msgspec.Struct, frozen=True):
    """What all ranks of an update must have alike. `lasts`: whether it stays different, so that its first step can be
    found by halving; `is_of_stages`: whether the stages of a pipeline must, too."""

    series: str
    noun: str
    lasts: bool
    remedy: Remedy
    is_of_stages: bool = False


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
    Setting("optimizer_steps", "optimizer's step count", True, Remedy(
        "Load the optimizer's state on all ranks from checkpoints of one step, and let all ranks make each update or "
        "none: by its count Adam corrects its bias, so that the ranks' updates are of other sizes.",
        "state = optimizer.state_dict()  # on each rank, right after loading\n"
        "print({float(each['step']) for each in state['state'].values() if 'step' in each})",
        "The optimizers' own counts were read.",
    ), is_of_stages=True),
)  # fmt: skip


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """One for each setting."""
    if len(evidence.ranks) < 2:
        return
    skipped = False
    for setting in SETTINGS:
        if setting.series == "lr":
            yield from _rates(evidence, setting)
            continue
        if not evidence.has_series(setting.series):
            continue
        if setting.series == "optimizer_steps" and skipped:
            continue  # its counts differ by that
        for found in _of_setting(evidence, setting):
            skipped = skipped or setting.series == "skipped_step"
            yield found


def _of_groups(evidence: Evidence) -> list[Finding]:
    """A finding for each parameter group whose learning rate ranks have unlike, the earliest first."""
    (rate,) = (each for each in SETTINGS if each.series == "lr")
    found: list[Finding] = []
    names: tuple[str, ...] | None = None
    for at in range(MOST_GROUPS):
        series = f"lr_group_{at}"
        if evidence.has_series(series) and _differs(evidence, series, *_window(evidence)).any():
            names = _group_names(evidence) if names is None else names
            name = f" ({names[at]})" if at < len(names) and names[at] else ""
            noun = f"learning rate of parameter group {at}{name}"
            found += _of_setting(evidence, msgspec.structs.replace(rate, series=series, noun=noun))
    return sorted(found, key=lambda each: each.step or 0)


def _group_names(evidence: Evidence) -> tuple[str, ...]:
    """As the first rank says that has several."""
    said = (each.read(Optimizers) for each in evidence.run.newest_events([Optimizers.KIND]))
    return next((each.groups for each in said if each is not None and each.groups), ())


def _rates(evidence: Evidence, setting: Setting) -> Iterable[Finding]:
    """One finding of learning rates: of all, which each step has, with the group that it is of; or of a group alone."""
    whole = list(_of_setting(evidence, setting)) if evidence.has_series(setting.series) else []
    groups = _of_groups(evidence)
    if not groups:
        yield from whole
        return
    first, others = (whole[0], groups) if whole else (groups[0], groups[1:])
    named = tuple(each.summary for each in others[:MOST_GROUPS_NAMED])
    yield msgspec.structs.replace(first, evidence=(*first.evidence, *named))


def _lines(evidence: Evidence, *, with_stages: bool = False) -> list[tuple[int, ...]]:
    """Ranks that make an update together."""
    placements = evidence.once("placements", lambda: mesh.placements_of(evidence.run))
    axes = {name for each in placements.values() for group in each.groups for name in (*group.axes, *group.alike)}
    along = axes - {STAGES}
    known = mesh_of(evidence)
    if along and with_stages:
        along.add(STAGES)
    elif ALL_RANKS in along and any(name == STAGES for name, _ in known.axes):
        along.discard(ALL_RANKS)
    return known.groups_along(along, [rank for rank in evidence.ranks if rank in known.members]) if along else []


def _of_setting(evidence: Evidence, setting: Setting) -> Iterable[Finding]:
    start, stop = _window(evidence)
    differs = _differs(evidence, setting.series, start, stop)
    if not differs.any():
        return
    lines = evidence.once(
        ("lines of an update", setting.is_of_stages), lambda: _lines(evidence, with_stages=setting.is_of_stages)
    )
    for step in (start + np.flatnonzero(differs)[[0, -1]]).tolist():
        odd = _odd(evidence, setting.series, step, lines)
        if odd:
            break
    else:
        return
    first, right = step, of_ranks.newest(evidence, setting.series, start, step)
    if setting.lasts and right is None:
        first, right = of_ranks.since(
            evidence, setting.series, step, lambda at: bool(_differs(evidence, setting.series, at, at + 1)[0])
        )
        odd = _odd(evidence, setting.series, first, lines) or odd
    yield _finding(evidence, setting, first, odd, right)


def _window(evidence: Evidence) -> tuple[int, int]:
    """The steps that are looked at: of more one is searched for by halving."""
    return max(evidence.whole_stop - WINDOW, of_ranks.started(evidence)), evidence.whole_stop


def _differs(evidence: Evidence, series: str, start: int, stop: int) -> Array:
    """(n,) whether any two ranks have different values at a step."""
    block = of_ranks.merged(evidence, series, start, stop)
    return np.asarray((block["count"] > 1) & (block["nonfinite_count"] == 0) & (block["max"] != block["min"]))


def _odd(evidence: Evidence, series: str, step: int, lines: Sequence[tuple[int, ...]]) -> list[dict[float, list[int]]]:
    """Of each line in which ranks differ: value -> its ranks, the most first."""
    total = sum(map(len, lines))
    found = []
    for line in lines:
        every = -(-total // of_ranks.MOST_READ)
        values = _values(evidence, series, step, line[::every] if every < len(line) else line)
        if len(values) > 1:
            found.append(dict(sorted(values.items(), key=lambda each: -len(each[1]))))
    return found


def _values(evidence: Evidence, series: str, step: int, ranks: Sequence[int]) -> Mapping[float, list[int]]:
    by_value: dict[float, list[int]] = {}
    for rank, value in of_ranks.at(evidence, series, step, ranks).items():
        by_value.setdefault(value, []).append(rank)
    return by_value


def _finding(
    evidence: Evidence, setting: Setting, step: int, odd: list[dict[float, list[int]]], right: int | None
) -> Finding:
    values = odd[0]
    (usual, most), *others = values.items()
    ranks = sorted(rank for _, those in others for rank in those)
    everyone = sorted(rank for those in values.values() for rank in those)
    is_clear = 2 * len(most) > len(everyone)
    is_before = right is None and step == of_ranks.started(evidence) > evidence.start
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
    if right is not None and right < step - 1:
        evidences.append(of_ranks.when_text(step, right))
    return Finding(
        rank=ranks[0] if len(ranks) == 1 and is_clear else None, step=step, subject=setting.series, summary=summary,
        evidence=tuple(evidences), remedy=(setting.remedy,),
        facts={"series": setting.series, "ranks": ranks if is_clear else everyone, "axes": _along(known, values),
               "cause_class": "learning_rate" if setting.series.startswith("lr") else "replicas"},
    )  # fmt: skip


def _axes(known: mesh.Mesh) -> str:
    names = [name for name, size in known.axes if size > 1 and name not in known.joined and name != STAGES]
    return " and ".join(names) or "all ranks"


def _along(known: mesh.Mesh, values: Mapping[float, Sequence[int]]) -> list[str]:
    """Axes by whose place alone it is decided which value a rank has; all along which it differs where none does."""
    names = [name for name, size in known.axes if size > 1 and name not in known.joined]
    return list(known.deciding(values.values())) or names


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
