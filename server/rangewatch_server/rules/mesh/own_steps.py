"""Ranks of one process group that began with the same bits and the same settings, and train apart, since nobody reduces
anything: the wrapper was forgotten, or the loop's own all_reduce stands behind an `if`.

Members of an ensemble, runs of a sweep and agents of their own are that, too, and begin, as a rule, with other weights
or other settings: of those nothing is said. Nor of ranks whose weights other code writes, or which send one another
anything of the parameters' size.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.wire.events import Optimizers, OwnSteps
from rangewatch_server.core.text import ranks_text
from rangewatch_server.rules.evidence import WINDOW, Evidence
from rangewatch_server.rules.mesh import values
from rangewatch_server.rules.mesh.wrapped_alone import Apart, apart
from rangewatch_server.rules.rule import Finding, Remedy

ELEMENTS, OTHER_SIZE = "input_elements", 1.5
"""Series of the agent; and the ratio of two ranks' batches from which on they are a setting: texts differ less."""

REDUCED = (
    "# model = torch.nn.parallel.DistributedDataParallel(model), before the optimizer is made; or in the loop,\n"
    "# between loss.backward() and optimizer.step(), and after one broadcast of rank 0's parameters to all:\n"
    "for each in model.parameters():\n"
    "    if each.grad is not None:\n"
    "        torch.distributed.all_reduce(each.grad)\n"
    "        each.grad /= torch.distributed.get_world_size()"
)


def findings(evidence: Evidence) -> Iterable[Finding]:
    """At most one."""
    newest = {event.rank: details for event, details in evidence.details(OwnSteps)}
    going_on = {rank: details for rank, details in newest.items() if details.updates}
    if len(going_on) < 2:
        return
    known = going_on[min(going_on)]
    found = apart(evidence, known)
    if found is not None and set(found.ranks) <= set(going_on) and found.is_sure and _have_one_setting(evidence, found):
        yield _finding(known, found)


def _have_one_setting(evidence: Evidence, found: Apart) -> bool:
    """By what is known of their optimizers and their batches. Those of a sweep have not; and of ranks along an axis it
    is known what they are for."""
    newest = {event.rank: details for event, details in evidence.details(Optimizers)}
    settings = {
        (known.classes, known.initial_lr, known.weight_decay, known.momentum, known.second_beta, known.trainable_count)
        for rank in found.ranks
        if (known := newest.get(rank)) is not None
    }
    if len(settings) > 1 or not found.has_one_rate:
        return False
    if not evidence.has_series(ELEMENTS):
        return True
    start = values.started(evidence)
    stop = min(evidence.whole_stop, start + WINDOW)
    sizes = [float(np.nanmedian(each)) for rank in found.ranks if np.isfinite(each := evidence.series(
        ELEMENTS, start, stop, rank)).any()]  # fmt: skip
    return not sizes or max(sizes) < OTHER_SIZE * min(sizes)


def _finding(known: OwnSteps, found: Apart) -> Finding:
    who = ranks_text(found.ranks)
    along = f" along {' and '.join(found.axes)}" if found.axes else ""
    return Finding(
        severity="warning", rank=None, step=known.first, tensor=None, kind="grad", subject="own steps",
        summary=f"Step {known.first}: {who} train apart{along}: nobody reduces their gradients, and what they hold "
        f"differs, such as {found.tensor}.",
        evidence=(
            f"At the first update {who} held the same bits of every parameter that was compared; at step {found.step} "
            f"{found.tensor} differed, and no parameter that differed was alike again.",
            f"In {known.updates} updates from step {known.first} on, and since, no collective, send or receive of the "
            "parameters' size was called, and no wrapper such as DistributedDataParallel is around the model. Learning "
            "rates, and what else is known of the settings, are the same on all.",
            "Cause (likely): the model was not wrapped, or the loop's own reduction is not reached, as behind an `if`. "
            "Against that: it may be meant, as of members of an ensemble, folds or agents that begin with one seed, or "
            f"of local SGD, DiLoCo or federated rounds that average less often than every {known.updates} updates "
            "(once they do, this is over).",
        ),
        remedy=(
            Remedy(
                "If the ranks are to train one model, wrap it in DistributedDataParallel, or all_reduce the gradients "
                "before each update; and make the ranks alike again, from one checkpoint. If not, leave this be.",
                REDUCED,
                "the process's own calls of collectives, and the checksums of what the ranks hold",
            ),
        ),
        facts={"axes": found.axes, "ranks": list(found.ranks), "since_step": known.first, "apart_step": found.step,
               "updates": known.updates, "cause_class": "replicas"},
    )  # fmt: skip
