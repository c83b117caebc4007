"""The loss scale grows and grows, since no gradient ever overflows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.wire.events import Scaler
from rangewatch_server.rules.evidence import BACKWARD, WINDOW, Evidence
from rangewatch_server.rules.loss_scale.causes import device_of, scale
from rangewatch_server.rules.loss_scale.history import History
from rangewatch_server.rules.loss_scale.never_grows import least_headroom
from rangewatch_server.rules.loss_scale.remedies import pace, scaler_settings
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

GROWTHS = 2
"""Doublings without a skip from which a scaler that has nothing to scale is reported."""

_CHECK = """\
for name, parameter in model.named_parameters():
    print(name, parameter.requires_grad, None if parameter.grad is None else parameter.grad.abs().max())"""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding a scaler."""
    for scaler in evidence.loss_scales.scalers:
        finding = _of(evidence, scaler, limits)
        if finding is not None:
            yield finding


def _of(evidence: Evidence, scaler: str, limits: Thresholds) -> Finding | None:
    history = evidence.loss_scales
    last, since, grown = history.last(scaler), *_growing(history, scaler)
    reported = scaler_settings(evidence, scaler)
    dtypes = {each.dtype for each in evidence.tensors.entries}
    if last is None or since is None or not dtypes:
        return None
    if "float16" not in dtypes and grown >= GROWTHS:
        return _finding(reported, since, last, "info", *_not_needed(evidence, dtypes))
    if last <= limits["most_scale"]:
        return None
    room = least_headroom(evidence)
    if _all_zero(evidence):
        return _finding(reported, since, last, "warning", *_zero())
    if room is None or room < limits["least_room"]:
        return None
    return _finding(reported, since, last, "info", *_tiny(evidence, room, last))


def _growing(history: History, scaler: str) -> tuple[int | None, int]:
    """Step of the first growth after the newest skip, and how many growths there were since."""
    skipped = max((each.step for each in history.recent if each.skipped), default=-1)
    begin = max(history.begins, default=0)
    grown = [each.step for each in history.recent if each.step >= max(begin, skipped) and each.of(scaler).grew]
    return (grown[0] if grown else None), len(grown)


def _all_zero(evidence: Evidence) -> bool:
    rows = [row for row, each in enumerate(evidence.tensors.entries) if each.kind in BACKWARD]
    block = evidence.window(("amax", "call_count", "nan_count", "inf_count"), WINDOW)
    seen = block.columns["call_count"][rows] > 0
    bad = sum(block.columns[name][rows].sum() for name in ("nan_count", "inf_count"))
    return bool(seen.any() and not bad and not block.columns["amax"][rows].any())


Explanation = tuple[str, tuple[str, ...], tuple[Remedy, ...]]


def _not_needed(evidence: Evidence, dtypes: set[str]) -> Explanation:
    seen = " and ".join(sorted(dtypes))
    why = f"nothing recorded is float16 ({seen}), so that it has nothing to do"
    because = f"the tensors are {seen}, whose range is wide enough for gradients"
    code = f"scaler = torch.amp.GradScaler({device_of(evidence)!r}, enabled=False)"
    remedy = Remedy("Leave the scaler out.", code, because)
    return why, (f"The recorded tensors are {seen}.", "It grows until a scaled loss overflows float32."), (remedy,)


def _zero() -> Explanation:
    because = f"every recorded gradient of the last {WINDOW} steps was zero"
    text = "See what cuts the loss off from the parameters: detach(), no_grad(), frozen parameters, a zero factor."
    return "every recorded gradient is zero", (f"{because[0].upper()}{because[1:]}.",), (Remedy(text, _CHECK, because),)


def _tiny(evidence: Evidence, room: float, last: float) -> Explanation:
    largest = 65504 / 2**room
    reasons = (
        f"The largest scaled gradient in float16 of the last {WINDOW} steps is {largest:.2g}, {room:.1f} bits below "
        f"its limit; without the scale it is {largest / last:.2g}.",
    )
    text = "See whether the loss is divided too often, such as by the accumulation steps twice."
    return "its gradients are very small", reasons, (Remedy(text, "", reasons[0]),)


def _finding(
    reported: Scaler, since: int, last: float, severity: str, why: str, evidence: tuple[str, ...],
    remedy: tuple[Remedy, ...],
) -> Finding:  # fmt: skip
    return Finding(
        severity=severity, step=since, subject=reported.series,
        summary=f"Step {since}: since then the loss scale grows without a skipped step, to {scale(last)}; {why}.",
        evidence=(*evidence, f"No step since {since} was skipped.", *pace(reported)), remedy=remedy,
        facts={"scaler": reported.series, "scale": last, "log2_scale": float(np.log2(last)) if last > 0 else None},
    )  # fmt: skip


RULE = Rule(
    name="loss_scale_growing_past_use",
    title="Loss scale grows past use",
    severity="info",
    explanation="A loss scale that never meets an overflow doubles for ever: the scaler is not needed (bfloat16, "
    "float32), or the gradients are zero, or far smaller than they should be.",
    check=check,
    thresholds=(
        Threshold("most_scale", 2.0**24, "", "From this scale on it is looked at."),
        Threshold("least_room", 4, "bits", "Headroom of the largest gradient: with less the scale is of use."),
    ),
)
