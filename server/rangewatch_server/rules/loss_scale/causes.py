"""What the rules of the loss scale share: who made it fall, and how to say it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rangewatch.wire.records import TensorEntry
from rangewatch_server.core.text import ranks_text
from rangewatch_server.rules.evidence import OPTIMIZER, Evidence
from rangewatch_server.rules.loss_scale.history import Change
from rangewatch_server.rules.loss_scale.skip_cause import Cause, Layer, by_layer, cause_of
from rangewatch_server.rules.phrases import module_path, the

ENDS = 4
"""First drops, and as many of the last, whose causes are searched for."""

_DEVICES = ("cpu", "xpu", "mps", "hpu", "npu")
_OF_A_PARAMETER = ("weight", "grad", *OPTIMIZER)


class Blame(msgspec.Struct, frozen=True):
    """Who made some steps be skipped. `top` was first most often, `cause` is the earliest step's of which it was."""

    causes: tuple[Cause, ...]
    top: Layer | None
    cause: Cause | None
    entry: TensorEntry | None

    @property
    def what(self) -> str:
        """A class of `skip_cause`, or `unknown`."""
        return "unknown" if self.cause is None else self.cause.what

    @property
    def rank(self) -> int | None:
        """Where `top` was not finite first."""
        return None if self.cause is None or self.cause.first is None else self.cause.first.rank

    @property
    def only_nan(self) -> bool:
        """Whether it held NaN each time, and never Inf: then no smaller scale would help."""
        firsts = [each.first for each in self.causes if each.first is not None]
        return bool(firsts) and all(each.nan_count and not each.inf_count for each in firsts)

    @property
    def held(self) -> str:
        """What it held: NaN or Inf."""
        return "Inf" if self.cause is None or self.cause.first is None or self.cause.first.inf_count else "NaN"


def blame(evidence: Evidence, drops: Sequence[Change]) -> Blame:
    """Who made these steps be skipped, by the first of them and the last."""
    steps = sorted({each.step for each in (*drops[:ENDS], *drops[-ENDS:]) if each.skipped})
    causes = tuple(cause_of(evidence.run, step) for step in steps)
    top = next((each for each in by_layer(causes) if each.first), None)
    if top is None:
        return Blame(causes, None, None, None)
    cause = next(each for each in causes if each.first is not None and each.first.tensor == top.tensor)
    return Blame(causes, top, cause, evidence.tensors.entries[top.tensor])


def sentences(evidence: Evidence, blamed: Blame) -> list[str]:
    """What is known of the causes."""
    if blamed.top is None or blamed.cause is None or blamed.entry is None:
        return [_nothing_seen(evidence)]
    count, all_of = blamed.top.first, len(blamed.causes)
    steps = "At the skipped step" if all_of == 1 else f"At {count} of the {all_of} skipped steps examined"
    lines = [f"{steps}, {the(blamed.entry)} was the first to be NaN or Inf."]
    if blamed.cause.amax is not None and blamed.cause.headroom_bits is not None:
        cast = ", in which it is computed" if blamed.cause.limit_dtype != blamed.entry.dtype else ""
        side = "below" if blamed.cause.headroom_bits >= 0 else "above"  # a sum in float32 may be
        lines.append(
            f"Its largest finite magnitude before step {blamed.cause.step} was {blamed.cause.amax:.3g} at step "
            f"{blamed.cause.amax_step}, {abs(blamed.cause.headroom_bits):.2f} bits {side} the limit of "
            f"{blamed.cause.limit_dtype}{cast}."
        )
    ranks = blamed.cause.ranks
    if len(evidence.ranks) > 1:
        lines.append(f"At step {blamed.cause.step} it was so on {ranks_text(ranks)} of {len(evidence.ranks)} ranks.")
    if blamed.what == "gradient" and any(each.kind == "output" for each in evidence.tensors.entries):
        lines.append("All that was recorded of the forward pass was finite at those steps.")
    return lines


def _nothing_seen(evidence: Evidence) -> str:
    kinds = sorted({each.kind for each in evidence.tensors.entries})
    seen = f"the kinds {', '.join(kinds)}" if kinds else "no tensor"
    return (
        f"Nothing recorded was NaN or Inf at the skipped steps looked at ({seen}): the cause is not known; it may be "
        "the reduction between ranks, or a parameter that is not observed."
    )


def module_of(evidence: Evidence, entry: TensorEntry) -> str:
    """The module that a tensor belongs to: a parameter's name without its last part."""
    if entry.kind in _OF_A_PARAMETER:
        return entry.fqn.rpartition(".")[0]
    return module_path(evidence.tensors.entries, entry.fqn)


def device_of(evidence: Evidence) -> str:
    """Torch's word for where the run computes."""
    reported = evidence.info(evidence.ranks[0]).device if evidence.ranks else ""
    return reported if reported in _DEVICES else "cuda"  # of a card the agent reports the product's name


def scale(value: float) -> str:
    """A loss scale in a sentence: 65536 and not 6.554e+04."""
    return f"{value:.0f}" if 1 <= value < 2**53 and value == int(value) else f"{value:.3g}"
