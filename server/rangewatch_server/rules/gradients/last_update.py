"""The last update that a run made was by gradients that were not finite, though the backward had made finite ones: no
forward came after it that would show it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES, SERIES_PART
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import TAKEN
from rangewatch_server.rules.optimizers import sampled_gradient
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.rule import Finding, Remedy

CLIP = (
    "def clip(parameters, max_norm):\n"
    "    gradients = [each.grad for each in parameters if each.grad is not None]\n"
    "    norm = torch.linalg.vector_norm(torch.stack([each.norm() for each in gradients]))\n"
    "    for each in gradients:\n"
    "        each.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))"
)


def last_update(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding. Of a loss scaler nothing is said: it leaves out such a step."""
    sampled, step = sampled_gradient(evidence), evidence.whole_stop - 1
    if sampled is None or not evidence.has_series(TAKEN) or evidence.is_loss_scaled or step < evidence.start:
        return
    name, tensor = sampled
    row, columns = np.array([evidence.run.names().series[TAKEN]]), ("call_count", "amax", "nan_count", "inf_count")
    for rank in evidence.ranks:
        taken = evidence.run.slice(SERIES_PART, [rank], 0, step, step + 1, ("nonfinite_count",), row)
        if not np.asarray(taken.columns["nonfinite_count"])[0, 0] > 0:
            continue
        made = evidence.run.slice(RANGES, [rank], 0, step, step + 1, columns, np.array([tensor])).columns
        calls, amax, nans, infs = (float(np.asarray(made[each])[0, 0]) for each in columns)
        if calls > 0 and not nans + infs:
            yield _finding(rank, step, name, amax)
        return


def _finding(rank: int, step: int, name: str, amax: float) -> Finding:
    zero = amax == 0
    return Finding(
        severity="critical", rank=rank, step=step, subject="last update", tensor=name, kind="grad",
        summary=f"{place(step, rank)}: the optimizer was given a gradient of {name} that holds NaN or Inf, and the "
        "backward had made a finite one: weights are lost with this update, the last of the run.",
        evidence=(
            f"As the backward made it, its largest magnitude was {amax:.3g}.",
            "Cause (likely): what stands between the backward and the optimizer's step, as clipping does."
            + (" The gradient was 0 in all elements, and 0 divided by its own norm is NaN." if zero else ""),
            "What would decide: print the norm that is clipped by, and whether gradients are finite before and after.",
        ),
        remedy=(
            Remedy(
                "Clip by a norm that is kept above 0, or by torch.nn.utils.clip_grad_norm_, and leave out a step whose "
                "norm is not finite.", CLIP,
                "the gradient was finite when the backward ended",
            ),
        ),
        facts={"amax": amax, "cause_class": "clip"},
    )  # fmt: skip
