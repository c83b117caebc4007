"""The newest update was by gradients that were not finite, though every backward had made finite ones: no forward has
come after it that would show it, as where a run ends there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES, SERIES_PART
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import TAKEN, UPDATE
from rangewatch_server.rules.optimizers import sampled_gradient
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy

CLIP = (
    "def clip(parameters, max_norm):\n"
    "    gradients = [each.grad for each in parameters if each.grad is not None]\n"
    "    norm = torch.linalg.vector_norm(torch.stack([each.norm() for each in gradients]))\n"
    "    for each in gradients:\n"
    "        each.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))"
)


def last_update(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding, of all ranks. A loss scaler leaves out such a step."""
    sampled, step = sampled_gradient(evidence), evidence.whole_stop - 1
    if sampled is None or evidence.is_loss_scaled or step < evidence.start:
        return
    if not _is_bad(evidence, TAKEN, step) or not _is_bad(evidence, UPDATE, step):
        return
    name, tensor = sampled
    columns = ("call_count", "amax", "nan_count", "inf_count")
    gradients = tensors_of(evidence, "grad")
    made = evidence.run.slice(RANGES, list(evidence.ranks), 0, step, step + 1, columns, gradients).columns
    calls, amax, nans, infs = (np.asarray(made[each], np.float64)[:, 0] for each in columns)
    # One that is not finite is made so of all by a clip, or by a reduction of all ranks: that is another rule's.
    if not (nans + infs).any() and calls[gradients == tensor].any():
        yield _finding(only_rank(evidence), step, name, float(amax[gradients == tensor].max()), len(evidence.ranks))


def _is_bad(evidence: Evidence, name: str, step: int) -> bool:
    """Whether the series held NaN or Inf at the step, on any rank."""
    if not evidence.has_series(name):
        return False
    row = np.array([evidence.run.names().series[name]])
    block = evidence.run.slice(SERIES_PART, list(evidence.ranks), 0, step, step + 1, ("nonfinite_count",), row)
    return bool((np.asarray(block.columns["nonfinite_count"]) > 0).any())


def _finding(rank: int | None, step: int, name: str, amax: float, ranks: int) -> Finding:
    zero = amax == 0
    return Finding(
        severity="critical", rank=rank, step=step, subject="last update", tensor=name, kind="grad",
        summary=f"{place(step, rank)}: the optimizer was given a gradient of {name} that holds NaN or Inf, and the "
        "backward had made a finite one: the update, the newest of the run, left NaN or Inf in the weight.",
        evidence=(
            f"As the backward made it, its largest magnitude was {amax:.3g}.",
            "Cause (likely): what stands between the backward and the optimizer's step, as clipping does."
            + (" The gradient was 0 in all elements, and 0 divided by its own norm is NaN." if zero else "")
            + (" The reduction over ranks stands there, too." if ranks > 1 else ""),
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
