"""Worth knowing: a step that the loss scaler skipped though its scale had not just grown past what gradients bear."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss_scale.causes import Blame, blame, scale, sentences
from rangewatch_server.rules.loss_scale.collapse import NEAR, Burst, bursts
from rangewatch_server.rules.loss_scale.history import History
from rangewatch_server.rules.nonfinite.code_snippets import FIND_BACKWARD, check_batch
from rangewatch_server.rules.phrases import place, the
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

SEARCH_STEPS = 64
"""Steps of a process in which skips are the search for a scale, where that began with its first steps."""

EXAMINED = 4
"""First skips after a growth, and as many of the last, whose headroom before is looked at."""

MANY = 8
"""Skipped steps one after the other, from which on it is no moment, and not one batch."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding a scaler: the first of them, with how many came after it."""
    history = evidence.loss_scales
    for scaler in history.scalers:
        odd = list(_unexplained(evidence, history, scaler, limits["grown_bits"]))
        if odd:
            yield _finding(evidence, scaler, history, odd)


def _unexplained(
    evidence: Evidence, history: History, scaler: str, grown_bits: float
) -> Iterator[tuple[Burst, bool, Blame]]:
    """Skips, whether the scale had grown just before, and who made them; ascending."""
    all_bursts = [each for each in bursts(history, scaler) if not _is_search(history, scaler, each)]
    grown = [each for each in all_bursts if _has_grown(history, scaler, each.first)]
    looked_at = [*grown[:EXAMINED], *grown[EXAMINED:][-EXAMINED:]]
    for each in all_bursts:
        had_grown = each in grown
        if had_grown and each not in looked_at:
            continue
        blamed = blame(evidence, each.drops[:1])
        bits = None if blamed.cause is None else blamed.cause.headroom_bits
        is_near = bits is not None and bits <= grown_bits
        is_explained = is_near and (had_grown or not blamed.only_nan)
        if not is_explained and not (had_grown and bits is None):
            yield each, had_grown, blamed


def _is_search(history: History, scaler: str, burst: Burst) -> bool:
    """Whether it belongs to the search for a scale, with which a process begins."""
    begin = max((each for each in history.begins if each <= burst.first), default=0)
    since = [each for each in history.recent if begin <= each.step < burst.first]
    began = burst.is_start or any(each.skipped and each.step <= begin + NEAR for each in since)
    return began and burst.first < begin + SEARCH_STEPS and not any(each.of(scaler).grew for each in since)


def _has_grown(history: History, scaler: str, step: int) -> bool:
    """Whether the last change of the scale before the step was a growth."""
    changed = [each.of(scaler) for each in history.recent if each.step < step]
    last = next((each for each in reversed(changed) if each.grew or each.fell), None)
    return last is not None and last.grew


def _finding(evidence: Evidence, scaler: str, history: History, odd: list[tuple[Burst, bool, Blame]]) -> Finding:
    burst, had_grown, blamed = odd[0]
    skipped = "this step" if burst.count == 1 else f"{burst.count} steps from here on"
    fell = f", from {scale(burst.before)} to {scale(burst.after)}" if burst.after < burst.before else ""
    who = "what overflowed was not recorded" if blamed.entry is None else f"{the(blamed.entry)} held {blamed.held}"
    return Finding(
        rank=blamed.rank, step=burst.first, subject=scaler,
        tensor=None if blamed.entry is None else blamed.entry.fqn,
        kind=None if blamed.entry is None else blamed.entry.kind,
        summary=f"{place(burst.first, blamed.rank)}: {who}, and the loss scaler skipped {skipped}{fell}; that the "
        "scale grows does not explain it.",
        evidence=tuple(_evidence(evidence, scaler, history, odd)),
        remedy=tuple(_remedies(burst, blamed)),
        facts={
            "scaler": scaler, "scale_before": burst.before, "scale_after": burst.after, "had_grown": had_grown,
            "cause": blamed.what, "times": len(odd), "last_step": odd[-1][0].last,
        },
    )  # fmt: skip


def _evidence(evidence: Evidence, scaler: str, history: History, odd: list[tuple[Burst, bool, Blame]]) -> Iterator[str]:
    burst, had_grown, blamed = odd[0]
    if had_grown:
        yield "The scale had grown before, but gradients were far from the limit at that scale."
    else:
        fell = [each.step for each in history.recent if each.step < burst.first and each.of(scaler).fell]
        since = f"since step {fell[-1]}, when it fell" if fell else "before"
        yield f"The scale had not grown {since}: steps at {scale(burst.before)} had been taken."
    yield from sentences(evidence, blamed)
    if len(odd) > 1:
        yield f"It happened {len(odd)} times in what was looked at, the last time at step {odd[-1][0].last}."
    if burst.count < MANY:
        yield "Such steps change no weight; what made the gradient large for a moment is still there."


def _remedies(burst: Burst, blamed: Blame) -> Iterator[Remedy]:
    if burst.count >= MANY:
        because = f"it was not finite in {burst.count} steps one after the other, which one batch does not explain"
        yield Remedy("Have torch name the operation.", FIND_BACKWARD, because)
        return
    where = "" if blamed.rank is None else f" on rank {blamed.rank}"
    yield Remedy(
        f"Look at the batch of step {burst.first}{where}: a single step comes from its data more often than from the "
        "model.", check_batch(burst.first), "the steps around it were taken at the same scale",
    )  # fmt: skip
    yield Remedy("If it comes again, have torch name the operation.", FIND_BACKWARD, "the gradient is not finite")


RULE = Rule(
    name="loss_scale_unexplained_skip",
    title="Gradients overflowed for a moment",
    severity="info",
    explanation="The loss scaler skipped a step, as it is meant to, but not because its scale had grown: at that scale "
    "steps had been taken before, and gradients had been far from the limit. A batch, a rank or an operation made "
    "gradients much larger for a moment. No weight was changed by it.",
    check=check,
    thresholds=(
        Threshold("grown_bits", 3.0, "bits", "Headroom before the step, up to which an overflow is nothing odd."),
    ),
)
