"""Early warning: what Adam keeps of the gradients is too small for its eps, or for the dtype that it is kept in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.numerics.pyramid import FANOUT
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import listed, place
from rangewatch_server.rules.recent import FEW_RANKS, LEVEL, Array, History, history, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

LASTING = 3
"""Groups of 64 steps with a reading, in a row, of which it must be so."""

WANTED = ("call_count", "full_numel", "amax", "moved_count", "eps_count", "lost_count")

MOVED_SHARE = 0.01
"""Of a parameter's elements so many must be moved at all: of the rows of an embedding few are."""


class Share(msgspec.Struct, frozen=True):
    """Of one `exp_avg_sq`: the first step of the group from which on it is so, the shares in the groups since then that
    have a reading, and its largest magnitude in the last. `is_throughout`: in all groups with a reading it is so."""

    tensor: int
    since: int
    values: Array
    amax: float
    is_throughout: bool


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding for moments that are lost, and one for those below eps."""
    moments = tensors_of(evidence, "exp_avg_sq")
    if not len(moments):
        return
    recorded = history(evidence, moments, WANTED)
    lost = _shares(evidence, moments, recorded, "lost_count", limits["most"])
    if lost:
        yield _lost(evidence, lost, limits["most"])
    named = {each.tensor for each in lost}
    below = [
        each for each in _shares(evidence, moments, recorded, "eps_count", limits["most"]) if _is_matrix(evidence, each)
    ]
    below = [each for each in below if each.tensor not in named]
    if below:
        always = _from_start(evidence, below, limits["most"])
        yield _below_eps(evidence, always or below, limits["most"], is_from_start=bool(always))


def _shares(evidence: Evidence, moments: Array, recorded: History, name: str, most: float) -> list[Share]:
    """Those of which it is so in the last `LASTING` groups with a reading, the worst first."""
    columns = recorded.columns
    moved, numel = columns["moved_count"], columns["full_numel"]
    is_read = (numel > 0) & (moved > MOVED_SHARE * numel)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(is_read, columns[name] / moved, np.nan)
    found: list[Share] = []
    for at, tensor in enumerate(moments.tolist()):
        there = np.flatnonzero(numel[at] > 0)
        if len(there) < LASTING or not (shares[at, there[-LASTING:]] >= most).all():
            continue
        quiet = np.flatnonzero(~(shares[at, there] >= most))
        since = there[quiet[-1] + 1 if len(quiet) else 0 :]
        start, amax = int(recorded.starts[since[0]]), float(columns["amax"][at, since[-1]])
        found.append(Share(tensor, start, shares[at, since], amax, not len(quiet)))
    return sorted(found, key=lambda each: (-float(each.values[-1]), each.tensor))


def _is_matrix(evidence: Evidence, share: Share) -> bool:
    """The true gradient of a bias may be zero, as of an attention's keys: what is left of it is rounding, and small."""
    return len(evidence.tensors.entries[share.tensor].shape) > 1


def _from_start(evidence: Evidence, below: list[Share], most: float) -> list[Share]:
    """Those that were below eps at their first reading of the run too: gradients that have become small are not."""
    tensors = np.array(sorted(each.tensor for each in below))
    early = Evidence(evidence.run, min(evidence.stop, evidence.start + (LASTING + 1) * FANOUT**LEVEL), evidence.start)
    first = history(early, tensors, WANTED).columns
    row = {int(tensor): at for at, tensor in enumerate(tensors)}
    always = []
    for each in below:
        moved, eps = first["moved_count"][row[each.tensor]], first["eps_count"][row[each.tensor]]
        there = np.flatnonzero(moved > 0)
        if each.is_throughout and len(there) and eps[there[0]] >= most * moved[there[0]]:
            always.append(each)
    return always


def _step_and_rank(evidence: Evidence, share: Share, name: str, most: float) -> tuple[int, int | None]:
    """The first step that was read of the group since which it is so, and the rank where not all ranks are alike."""
    group = share.since // FANOUT**LEVEL * FANOUT**LEVEL
    shares: dict[int, float] = {}
    steps = []
    for rank in evidence.ranks[:FEW_RANKS]:
        row = evidence.row(share.tensor, rank, group, group + FANOUT**LEVEL, ("moved_count", name))
        at = np.flatnonzero(row["moved_count"] > 0)
        if len(at):
            steps.append(max(evidence.start, group) + int(at[0]))
            shares[rank] = float(row[name][at[0]] / row["moved_count"][at[0]])
    worst = [rank for rank, each in shares.items() if each >= most]
    alone = worst[0] if len(worst) == 1 and len(evidence.ranks) <= FEW_RANKS else only_rank(evidence)
    return min(steps, default=share.since), alone


def _lost(evidence: Evidence, lost: list[Share], most: float) -> Finding:
    first = lost[0]
    entry = evidence.tensors.entries[first.tensor]
    step, rank = _step_and_rank(evidence, first, "lost_count", most)
    least = limits_of(entry.dtype).smallest_subnormal
    share = float(first.values[-1])
    return Finding(
        rank=rank, step=step, tensor=entry.fqn, kind="exp_avg_sq", subject="lost",
        summary=f"{place(step, rank)}: {share:.0%} of the second moments (exp_avg_sq) of {entry.fqn} have underflowed "
        f"to zero in {entry.dtype}.",
        evidence=(
            f"Their first moments (exp_avg) are not zero: the gradients are there, and their squares are below "
            f"{least:.2g}, the smallest number of {entry.dtype}.",
            "Adam divides by sqrt(exp_avg_sq) + eps: by eps alone where that is zero, so that such elements move by "
            "far too much or, with a large eps, next to nothing.",
            *_others(evidence, lost),
        ),
        remedy=(
            Remedy(
                "Keep the moments in float32: make the optimizer of float32 parameters, and compute under autocast.",
                "model.float()  # before the optimizer is made\n"
                "with torch.autocast(device_type, dtype=torch.bfloat16):\n    loss = loss_of(model(inputs))",
                f"the moments are {entry.dtype}, whose smallest number squares of these gradients do not reach",
            ),
        ),
        facts={"share": share, "limit": most, "tensors": len(lost)},
    )  # fmt: skip


def _below_eps(evidence: Evidence, below: list[Share], most: float, *, is_from_start: bool) -> Finding:
    first = below[0]
    entry = evidence.tensors.entries[first.tensor]
    step, rank = _step_and_rank(evidence, first, "eps_count", most)
    share, root = float(first.values[-1]), first.amax**0.5
    became = "since the first reading" if is_from_start else f"since step {step}, after larger ones"
    because = f"sqrt(exp_avg_sq) of {share:.0%} of the elements is below eps"
    eps = 10.0 ** np.floor(np.log10(root) - 2) if root > 0 else 0.0
    return Finding(
        severity="warning" if is_from_start else "info",
        rank=rank, step=step, tensor=entry.fqn, kind="exp_avg_sq", subject="eps",
        summary=f"{place(step, rank)}: Adam's eps decides how far {share:.0%} of the elements of {entry.fqn} move: "
        "their updates are less than half of what the gradients ask for.",
        evidence=(
            f"sqrt(exp_avg_sq / bias_correction2) of these elements is below eps, {became}: "
            f"{', '.join(f'{each:.0%}' for each in first.values[-LASTING:])} of them in the last {LASTING} readings. "
            f"The limit is {most:.0%}.",
            f"The largest sqrt(exp_avg_sq) of it is {root:.2g}.",
            *([] if is_from_start else ["A model that has learned all that there is has such gradients too."]),
            *_others(evidence, below),
        ),
        remedy=(
            *(
                [
                    Remedy(
                        f"Make eps smaller than these roots, such as {eps:.0e}.",
                        f"for group in optimizer.param_groups:\n    group['eps'] = {eps:.0e}",
                        because,
                    )
                ]
                if eps
                else []
            ),
            Remedy(
                "Or scale the loss up: but for eps and a gradient clip, Adam's updates do not depend on its scale.",
                "(loss * 1024).backward()  # and the norm that gradients are clipped to",
                because,
            ),
        ),
        facts={"share": share, "limit": most, "tensors": len(below), "largest_root": root},
    )  # fmt: skip


def _others(evidence: Evidence, shares: list[Share]) -> Iterator[str]:
    more = [evidence.tensors.entries[each.tensor] for each in shares[1:]]
    if more:
        yield f"{len(more)} more {'are' if len(more) > 1 else 'is'} so: {listed(more)}."


RULE = Rule(
    name="adam_moments",
    title="Moments too small for Adam",
    severity="warning",
    explanation="Adam divides each element's exp_avg by sqrt(exp_avg_sq) + eps. Where gradients are so small that eps "
    "is the larger of the two, the updates shrink with the gradients, as in SGD with a tiny learning rate; where the "
    "squares of the gradients underflow to zero in the moments' own dtype, eps is all there is to divide by. "
    "Of elements that no gradient reaches, as rows of an embedding that no batch has, nothing is said. Gradients that "
    "became small in the course of the training are an info. Needs the kind exp_avg_sq.",
    check=check,
    thresholds=(Threshold("most", 0.5, "of the elements that move", "More of a parameter are too many."),),
)  # fmt: skip
