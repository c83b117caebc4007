"""The loss scale falls at nearly every step, lies below what is of use, or cannot fall any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from rangewatch.wire.events import Scaler
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss_scale import remedies
from rangewatch_server.rules.loss_scale.bad_loss import BadLoss, bad_loss, follows_scale
from rangewatch_server.rules.loss_scale.causes import Blame, blame, device_of, module_of, scale, sentences
from rangewatch_server.rules.loss_scale.history import MOST_RECENT, Change, History
from rangewatch_server.rules.loss_scale.remedies import scaler_settings, way_back
from rangewatch_server.rules.nonfinite.code_snippets import FIND_BACKWARD
from rangewatch_server.rules.phrases import the
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

NEAR = 2
"""Skipped steps that are so many apart belong together: one clean step between them is none."""

LATELY = 32
"""Steps before the last in which a skip means that it goes on."""

STUCK = 4
"""Skipped steps in a row that leave the scale as it is: more than the hysteresis of any known scaler."""


LEAST_SCALE = 128.0
"""Below this scale gradients under 5e-7 have lost bits in float16."""

MOST_HELD = 16
"""Skipped steps after which any scaler that halves its scale, hysteresis or not, has done so a few times."""

NAN_BITS = 6
"""Halvings after which a gradient that overflowed would have been finite somewhere, or Inf."""

INF_BITS = 40
"""The same of Inf: a gradient that is so at 2**-40 of a usual scale had to be a million times the limit of float16."""


MANY_BITS, GROWN_BITS = 16, 32
"""Or by how much it had to grow within one step, where its room before is known: no update makes it 2**32 times."""


class Burst(msgspec.Struct, frozen=True):
    """Skipped steps one after the other, with the scale at the first and after the last.

    `drops`: the newest of them, as a rule all; `first` and `count` are of all.
    """

    drops: tuple[Change, ...]
    first: int
    count: int
    before: float
    after: float
    is_start: bool
    """It began with the first steps of a process: the scaler's search for a scale."""
    stuck: int
    """How many of its last steps left the scale as it was."""

    @property
    def last(self) -> int:
        return self.drops[-1].step

    @property
    def is_dense(self) -> bool:
        """Whether most steps of it were skipped."""
        return self.count > 1 and 2 * self.count >= self.last - self.first + 1

    @property
    def hardly_moves(self) -> bool:
        """Whether it falls by so little a skipped step that as a search for a scale it comes to no end."""
        return self.count >= MOST_HELD and self.bits < self.count / 4

    @property
    def bits(self) -> float:
        """Halvings."""
        return float(np.log2(self.before / self.after)) if self.after > 0 else float("inf")


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding a scaler."""
    history = evidence.loss_scales
    for scaler in history.scalers:
        all_bursts = bursts(history, scaler)
        least = limits["least_scale"]
        # The first stays, with those after it: what was said of it when it came is said at the end.
        collapses = [
            each
            for each in all_bursts
            if _is_collapse(evidence, each, limits) and not _has_recovered(history, scaler, each, least)
        ]
        if not collapses and (low := _too_low(history, scaler, all_bursts, least)) is not None:
            collapses = [low] if not _has_recovered(history, scaler, low, least) else []
        if collapses:
            yield _finding(evidence, scaler, collapses, least)


def bursts(history: History, scaler: str) -> list[Burst]:
    """Groups of skipped steps among the newest changes, in order."""
    groups: list[list[Change]] = []
    for each in history.recent:
        if not each.skipped or each.of(scaler).before is None or (each.fell and not each.of(scaler).fell):
            continue
        if groups and each.step - groups[-1][-1].step <= NEAR:
            groups[-1].append(each)
        else:
            groups.append([each])
    all_bursts = []
    for group in groups:
        oldest, last = group[0].step, group[-1].of(scaler)
        first, before = oldest, group[0].of(scaler).before
        if len(history.recent) == MOST_RECENT and group[0] is history.recent[0]:  # it began before what was read
            taken = history.last_taken(oldest)
            first = history.start if taken is None else taken + 1
            reported = history.columns(0, first, oldest + 1).high[scaler]
            before = float(reported[~np.isnan(reported)][0])
        after = last.before if last.after is None else last.after
        is_start = any(begin <= first <= begin + NEAR for begin in history.begins)
        count, stuck = len(group) + oldest - first, _stuck(scaler, group)
        all_bursts.append(Burst(tuple(group), first, count, before or 0.0, after or 0.0, is_start, stuck))
    return all_bursts


def _stuck(scaler: str, group: Sequence[Change]) -> int:
    count = 0
    for each in reversed(group):
        if each.of(scaler).after not in (each.of(scaler).before, None):
            break
        count += 1
    return count


def _is_collapse(evidence: Evidence, burst: Burst, limits: Thresholds) -> bool:
    if burst.stuck >= STUCK:
        return True
    if burst.count < limits["skipped_in_a_row"]:
        return False
    if burst.after < limits["least_scale"] <= burst.before:
        return True
    if burst.is_start:  # a high first scale takes many halvings; but none mends the forward pass
        return burst.hardly_moves or blame(evidence, burst.drops).what == "forward"
    return burst.bits >= limits["skipped_in_a_row"] / 2


def _too_low(history: History, scaler: str, all_bursts: Sequence[Burst], least: float) -> Burst | None:
    """The skips since the scale last grew, where they brought it below `least` and it still is."""
    last = history.last(scaler)
    crossed = [at for at, each in enumerate(all_bursts) if each.after < least <= each.before]
    if last is None or last >= least or not crossed:
        return None
    cross = all_bursts[crossed[-1]]
    grew = max((each.step for each in history.recent if each.step < cross.first and each.of(scaler).grew), default=-1)
    begin = max((each for each in history.begins if each <= cross.first), default=0)
    all_of = [each for each in all_bursts if each.first > max(grew, begin - 1)]
    drops = tuple(drop for each in all_of for drop in each.drops)
    count = sum(each.count for each in all_of)
    return Burst(drops, all_of[0].first, count, all_of[0].before, all_of[-1].after, all_of[0].is_start, 0)


def _has_recovered(history: History, scaler: str, burst: Burst, least: float) -> bool:
    """Whether it has grown again since, to what is of use."""
    last = history.last(scaler)
    grew = any(each.step > burst.last and each.of(scaler).grew for each in history.recent)
    return grew and last is not None and last >= least


def _finding(evidence: Evidence, scaler: str, collapses: Sequence[Burst], least: float) -> Finding:
    burst, newest = collapses[0], collapses[-1]
    blamed = blame(evidence, burst.drops)
    loss = follows_scale(evidence, evidence.loss_scales, scaler, burst.first, burst.last)
    if loss is None and blamed.what != "forward":
        loss = bad_loss(evidence, burst.first, blamed.rank)
    goes_on = newest.last >= evidence.loss_scales.stop - LATELY
    rank = "" if blamed.rank is None else f", rank {blamed.rank}"
    if burst.bits < 0 and burst.count >= STUCK:
        what = (
            f"the loss scale is raised from {scale(burst.before)} to {scale(burst.after)} while {burst.count} steps "
            "are skipped"
        )
    elif burst.stuck >= STUCK:
        stays = f"stays at {scale(burst.after)}, its minimum or fixed"
        what = f"{burst.stuck} steps are skipped and the loss scale {stays}"
    else:
        count = f", {burst.count} of {burst.last - burst.first + 1} steps skipped" if burst.count > 1 else ""
        what = (
            f"the loss scale {'collapses' if burst.is_dense else 'falls'} from {scale(burst.before)} to "
            f"{scale(burst.after)}{count}{'' if goes_on and newest is burst else f' until step {burst.last}'}"
        )
    return Finding(
        severity="critical" if goes_on and (newest.is_dense or newest.stuck >= STUCK) else "warning",
        rank=blamed.rank, step=burst.first, subject=scaler,
        tensor=None if blamed.entry is None else blamed.entry.fqn,
        kind=None if blamed.entry is None else blamed.entry.kind,
        summary=f"Step {burst.first}{rank}: {what}; {_why(blamed, burst, loss)}.",
        evidence=(
            *(loss.sentences if loss is not None else ()),
            *_evidence(evidence, burst, blamed, least),
            *(_again(collapses[1:]) if newest is not burst else ()),
            *(_never_falls(scaler_settings(evidence, scaler)) if loss is None and _is_fixed(blamed, burst) else ()),
            *way_back(scaler_settings(evidence, scaler), burst.before, burst.after),
        ),
        remedy=tuple(_remedies(evidence, blamed, burst)) if loss is None else loss.remedies,
        facts={
            "scaler": scaler, "scale_before": burst.before, "scale_after": burst.after, "cause": blamed.what,
            "skipped_steps": burst.count, "last_skipped_step": burst.last,
            **_cause_class(blamed, burst, loss),
        },
    )  # fmt: skip


def _again(later: Sequence[Burst]) -> Iterator[str]:
    last = later[-1]
    times = "once more" if len(later) == 1 else f"{len(later)} times more"
    yield (
        f"It did so {times}, the last time from step {last.first} to {last.last}, from {scale(last.before)} to "
        f"{scale(last.after)}."
    )


def _cause_class(blamed: Blame, burst: Burst, loss: BadLoss | None) -> dict[str, str]:
    if loss is not None:
        return {"cause_class": loss.cause}
    if _is_fixed(blamed, burst):
        return {"cause_class": "loss_scale"}
    return {"cause_class": "backward_arithmetic"} if _stays_bad(blamed, burst) else {}


def _why(blamed: Blame, burst: Burst, loss: BadLoss | None) -> str:
    if loss is not None:
        return loss.why
    if blamed.entry is None:
        return "what overflows was not recorded"
    first = f"{the(blamed.entry)} holds {blamed.held} first"
    if blamed.what == "forward":
        return f"{first}, in the forward pass, which no scale mends"
    if _stays_bad(blamed, burst):
        return f"{first}, which a smaller scale does not mend"
    return first


def _stays_bad(blamed: Blame, burst: Burst) -> bool:
    """Whether a gradient was NaN, and never Inf, or Inf, however small the scale became: that is no overflow."""
    if blamed.only_nan:
        return blamed.what == "gradient" and burst.bits >= NAN_BITS
    room = None if blamed.cause is None else blamed.cause.headroom_bits
    grown = burst.bits + (room if room is not None and burst.bits >= MANY_BITS else 0.0)
    return blamed.what == "gradient" and (burst.bits >= INF_BITS or grown >= GROWN_BITS)


def _is_fixed(blamed: Blame, burst: Burst) -> bool:
    """Whether a gradient overflowed in many steps, and not one of them has lowered the scale."""
    return blamed.what == "gradient" and not blamed.only_nan and burst.count >= MOST_HELD and burst.bits <= 0


def _never_falls(reported: Scaler) -> Iterator[str]:
    back = reported.backoff_factor
    if back is not None and back >= 1:
        why = f"its backoff_factor is {back:g}"
    elif back is not None:
        why = (
            f"its backoff_factor of {back:g} would lower it, so it is set again: the scaler is made anew in each step, "
            "or its update() is given a value"
        )
    else:
        why = "it is fixed, or set again in each step"
    yield f"Cause (likely): loss scaling: no skipped step lowers the scale: {why}."
    yield "What would decide: begin with a scale of 1024."


def _evidence(evidence: Evidence, burst: Burst, blamed: Blame, least: float) -> Iterator[str]:
    many = f"{burst.count} steps were skipped, from {burst.first} to {burst.last}"
    yield (
        f"{many if burst.count > 1 else f'Step {burst.first} was skipped'}; the loss scale was {scale(burst.before)} "
        f"before and {scale(burst.after)} after."
    )
    if burst.first > evidence.loss_scales.start and burst.is_start:
        yield "A process began with them."
    yield from sentences(evidence, blamed)
    if blamed.what == "forward":
        yield "The loss scale multiplies gradients only: it falls, and what is wrong stays."
    if _stays_bad(blamed, burst):
        held = "NaN and no Inf" if blamed.only_nan else "Inf"
        yield f"It held {held} at each scale: that is not an overflow of the scaled gradient."
    if burst.after < least:
        yield f"Below a scale of {scale(least)} small gradients are lost in float16."


def _remedies(evidence: Evidence, blamed: Blame, burst: Burst) -> Iterator[Remedy]:
    device = device_of(evidence)
    if blamed.entry is None:
        text = "Record what the optimizer gets too, to see who overflows: attach(..., level='frames')."
        yield Remedy(text, "", "no recorded tensor was NaN or Inf at the skipped steps")
        return
    module, first = module_of(evidence, blamed.entry), f"{the(blamed.entry)} is the first to be {blamed.held}"
    if blamed.entry.kind == "weight":
        yield Remedy("Go back to a checkpoint from before that step: the weights hold it already.", "", first)
        return
    stays_bad = _stays_bad(blamed, burst)
    if burst.hardly_moves and blamed.what == "gradient" and not blamed.only_nan:
        text = "Begin with a smaller scale, and let a skipped step halve it (backoff_factor=0.5)."
        if _is_fixed(blamed, burst):
            text = (
                "Make one scaler before the loop, and keep it; let a skipped step halve its scale, from a smaller one: "
                "give its update() no value."
            )
        yield remedies.scaler(
            text, device, min(burst.before, 2.0**16), 2_000,
            f"{burst.count} skipped steps lowered the loss scale by {burst.bits:.2g} bits alone",
        )  # fmt: skip
    if stays_bad:
        text = f"Look for a root, norm, logarithm or division of 0 behind {module or 'the model'}, and add an epsilon."
        yield Remedy(text, FIND_BACKWARD, first)
    is_wide = blamed.what == "forward" and blamed.entry.dtype in ("float32", "float64")
    if blamed.what == "forward" and (blamed.only_nan or is_wide):
        never = ", and never Inf" * blamed.only_nan
        yield remedies.check_weights(module, f"{first}{never}: its weights or its input may be {blamed.held} already")
    if blamed.what != "reduction" and not is_wide and not (stays_bad and not blamed.only_nan):
        yield remedies.float32(module, f"{first}, in {blamed.entry.dtype}")
    if blamed.what == "gradient" and not stays_bad and not _is_fixed(blamed, burst):
        yield remedies.clip("it holds back weights that grow; what overflows already it does not mend")
    if blamed.entry.dtype == "float16" or blamed.what == "reduction":
        yield remedies.bf16(device, "bfloat16 has the range of float32")


RULE = Rule(
    name="loss_scale_collapse",
    title="Loss scale collapses",
    severity="critical",
    explanation="Step after step is skipped, and the loss scale halved each time: the weights are not updated. It is "
    "not the search at the start, which ends at a scale that fits. Where the forward pass holds NaN or Inf the scale "
    "is not to blame, and no scale mends it. A scale that has become small loses small gradients.",
    check=check,
    thresholds=(
        Threshold("skipped_in_a_row", 8, "steps", "So many skipped steps in a row are no search any more."),
        Threshold("least_scale", LEAST_SCALE, "", "Below this scale small gradients are lost in float16."),
    ),
    explains=(
        "gradient_underflow",
        "loss_scale_unexplained_skip",
        "underflow_rising",
        "unchanged_weights",
        "vanishing_gradient",
    ),
)
