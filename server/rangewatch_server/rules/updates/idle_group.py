"""A parameter group whose learning rate has been 0 since the run began, while others' is not. Info for the first steps:
one that is to be unfrozen soon is made so, and looks the same until then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rangewatch_server.numerics.pyramid import level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.learning_rate import group_rates
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy

LASTING = 128
"""Steps for which it must have been so: layers are unfrozen in stages, and a rate may be warmed up from 0."""

FOR_GOOD = 192
"""Steps after which it is a warning, but of a single number: what is frozen for so long costs its gradients for
nothing, meant or not; and a scale or a temperature is frozen so without a thought for that."""

EACH = 2
"""The agent reads the rates of groups at the first step, and after twice as many each time."""


def idle_group(evidence: Evidence) -> Iterator[Finding]:
    """Of the first group of which all readings are 0, where gradients are computed for it all the same."""
    start, count = evidence.start, evidence.whole_stop - evidence.start
    if count < LASTING or 0 not in group_rates(evidence, start).values():
        return
    steps = [start + EACH**each - 1 for each in range(count.bit_length())]
    readings = [(step, known) for step in steps if (known := group_rates(evidence, step))]
    last, newest = readings[-1]
    if last - start < LASTING - 1:
        return
    names = [
        each
        for at, each in enumerate(newest)
        if all(known.get(each) == 0 for _, known in readings) and not _ever_moved(evidence, at)
    ]
    if not names or not any(newest.values()) or not (each := _pushed(evidence, names[0])):
        return
    rank = only_rank(evidence)
    yield Finding(
        severity="warning" if count >= FOR_GOOD and not _is_scalar(evidence, names[0]) else "info",
        rank=rank, step=start, tensor=names[0], kind="weight", subject="idle_group",
        summary=f"{place(start, rank)}: the learning rate of the parameter group of {names[0]} has been 0 since the "
        "run began: nothing in it is trained, though it gets gradients.",
        evidence=(
            f"It was 0 at each of {len(readings)} readings, from step {readings[0][0]} to step {last}; the others' was "
            f"{max(newest.values()):.3g} then.",
            f"The gradient of {names[0]} was up to {each:.3g}.",
            "Cause (shown): the learning rate: the schedule of that group gives 0, as where a share of a warm-up is "
            "rounded down (step // warmup), or the group was made with it, as by 1 // 10. Against that: it may be "
            "meant, to begin with.",
        ),
        remedy=(
            Remedy(
                "Look at the schedule of that group: it must come to more than 0. If the group is meant to be frozen, "
                "requires_grad_(False) saves its gradients, too.",
                "print([group['lr'] for group in optimizer.param_groups])  # at each step",
                "the optimizers' own parameter groups were read",
            ),
        ),
        facts={"since_step": start, "seen_step": last, "cause_class": "learning_rate"},
    )  # fmt: skip


def _ever_moved(evidence: Evidence, group: int) -> bool:
    """Whether any reading of its rate is above 0: the agent also reads where a rate of 0 is set to another."""
    level = level_for(evidence.whole_stop - evidence.start, SCAN_COLUMNS)
    return bool((evidence.largest(f"lr_group_{group}", evidence.start, evidence.whole_stop, level) > 0).any())


def _is_scalar(evidence: Evidence, name: str) -> bool:
    entries = (evidence.tensors.entries[each] for each in tensors_of(evidence, "grad").tolist())
    return any(each.fqn == name and math.prod(each.shape) == 1 for each in entries)


def _pushed(evidence: Evidence, name: str) -> float:
    """The largest magnitude of its gradient of late; 0 where it has none, or is no parameter."""
    entries = evidence.tensors.entries
    rows = [each for each in tensors_of(evidence, "grad").tolist() if entries[each].fqn == name]
    return float(evidence.window(("amax",)).columns["amax"][rows].max(initial=0.0))
