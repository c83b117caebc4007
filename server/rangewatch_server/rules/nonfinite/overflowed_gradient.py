"""A gradient that passed the limit of float16 though each operation of the backward is sound: the loss was multiplied
by too much for it, and nothing left the step out.
"""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch_server.rules.loss_scale import remedies as scaler_remedies
from rangewatch_server.rules.loss_scale.causes import device_of
from rangewatch_server.rules.nonfinite.case import Case
from rangewatch_server.rules.nonfinite.forward import NEAR_LIMIT_BITS
from rangewatch_server.rules.nonfinite.operations import NARROW
from rangewatch_server.rules.nonfinite.search import is_skipped
from rangewatch_server.rules.nonfinite.tensor_phrases import headroom, limit_text, name_of
from rangewatch_server.rules.optimizers import newest_optimizers
from rangewatch_server.rules.rule import Remedy


def overflowed(case: Case) -> str:
    """What was finite right before the bad gradient and next to the limit of its 16 bits; "" where nothing was. The
    gradient of a weight is a sum of it over the rows of a batch, and that of an input one over outputs.
    """
    view, bad = case.view, case.bad
    if not bad.inf_count or case.entry.kind not in ("grad", "grad_output"):
        return ""
    if case.entry.kind == "grad":
        before = view.find(case.entry.fqn.rpartition(".")[0], "grad_output")
    else:
        before = view.before(bad.tensor, "grad_output")[-1:]
    for each in before:
        entry, amax = view.entries[each], view.amax(each)
        if not view.is_bad[each] and entry.dtype in NARROW and headroom(entry.dtype, amax) < NEAR_LIMIT_BITS:
            return f"The gradient of the output of {name_of(entry.fqn)} was {limit_text(entry.dtype, amax)}"
    return ""


def passes_scaler(case: Case) -> bool:
    """Whether the loss is scaled, and the only optimizer made an update that the scaler was to leave out."""
    evidence = case.evidence
    newest = newest_optimizers(evidence, case.bad.rank)
    # What no optimizer has the scaler does not see.
    is_seen = case.entry.fqn not in newest.left_out and newest.left_out_count == len(newest.left_out)
    is_one = len(newest.classes) < 2
    return evidence.is_loss_scaled and is_one and is_seen and not is_skipped(evidence, case.bad.step)


def remedies(case: Case) -> Iterator[Remedy]:
    """Of a loss that no scaler of torch multiplies."""
    yield scaler_remedies.scaler(
        "Train with torch.amp.GradScaler, which finds what the loss may be multiplied by and leaves out steps whose "
        "gradients overflow; where code multiplies the loss by a scale of its own, leave that out, or make it smaller.",
        device_of(case.evidence), 2**16, 2_000, "gradients passed the limit of their 16 bits",
    )  # fmt: skip
