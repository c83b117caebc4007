"""The loss scale does not grow as a scaler makes it: it stands still, only falls, or grows at every few steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from rangewatch.wire.events import Scaler
from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.rules.evidence import BACKWARD, WINDOW, Evidence
from rangewatch_server.rules.gradients import gradient_underflow
from rangewatch_server.rules.loss_scale import remedies
from rangewatch_server.rules.loss_scale.causes import blame, device_of, module_of, scale, sentences
from rangewatch_server.rules.loss_scale.collapse import LEAST_SCALE, bursts
from rangewatch_server.rules.loss_scale.history import MOST_RECENT, Change, History
from rangewatch_server.rules.loss_scale.remedies import scaler_settings, why_standing
from rangewatch_server.rules.phrases import the
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Rule, Threshold, Thresholds

PAST_USE = 2.0**24
"""Above it nobody needs it to grow; some scalers end there."""

NEVER = 10
"""A growth_interval so many times the usual one is meant to be for ever: the scale is judged by the usual one."""

FEW_FALLS = 4
"""Falls at different times, without growth between them, that are no chance."""


class Course(msgspec.Struct, frozen=True):
    """One scaler since its process began, or since its scale last grew: the step `since`."""

    scaler: str
    since: int
    stop: int
    begin: int
    interval: int
    """Clean steps after which it should grow: as it is set, or else as seen, or else the default of scalers."""
    is_seen: bool
    settings: Scaler
    drops: tuple[Change, ...]


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding a scaler."""
    history = evidence.loss_scales
    for scaler in history.scalers:
        course = _course(history, scaler_settings(evidence, scaler), int(limits["growth_interval"]))
        for find in (_driven, _falling, _standing):
            finding = find(evidence, course, limits)
            if finding is not None:
                yield finding
                break


def _course(history: History, reported: Scaler, usual: int) -> Course:
    scaler, begin = reported.series, max(history.begins, default=history.start)
    changes = [each for each in history.recent if each.step >= begin]
    grown = [at for at, each in enumerate(changes) if each.of(scaler).grew]
    # Steps between a growth and the change before it are clean, and as many as the scaler waits for.
    clean = [changes[at].step - (changes[at - 1].step if at else begin - 1) for at in grown]
    interval = int(np.median(clean)) if clean else usual
    if reported.interval is not None:
        interval = reported.interval if reported.interval <= NEVER * usual else usual
    newest = grown[-1] if grown else -1
    since = changes[newest].step + 1 if grown else begin
    drops = tuple(each for each in changes[newest + 1 :] if each.skipped)
    # One that is hidden by thinned history shows in the scale.
    for earlier, later in pairwise(drops):
        after, before = earlier.of(scaler).after, later.of(scaler).before
        if after is not None and before is not None and before > after:
            since, drops = later.step, tuple(each for each in drops if each.step >= later.step)
    return Course(scaler, since, history.stop, begin, interval, bool(clean), reported, drops)


def _driven(evidence: Evidence, course: Course, limits: Thresholds) -> Finding | None:
    """It grows so often that many steps are lost to finding out that it must not."""
    history = evidence.loss_scales
    start = max(course.begin, history.stop - WINDOW)
    if len(history.recent) == MOST_RECENT:
        start = max(start, history.recent[0].step)
    lately = [each for each in history.recent if each.step >= start]
    skipped = [each for each in lately if each.skipped]
    grown = sum(each.of(course.scaler).grew for each in lately)
    steps = history.stop - start
    if (
        steps < WINDOW // 2
        or len(skipped) < limits["skipped_share"] * steps
        or not _is_led_by_growth(course, grown, len(skipped))
    ):
        return None
    because = f"{len(skipped)} of the last {steps} steps were skipped, and the scale grew {grown} times"
    since, count = start, len(skipped)
    all_of = History(evidence.run, course.begin, history.stop)
    if all_of.skipped_steps >= limits["skipped_share"] * (history.stop - course.begin):
        since, count = course.begin, all_of.skipped_steps  # which stays, however long it goes on
    text = "Let the scaler wait longer before it raises the scale, and no more than double it."
    last = history.last(course.scaler) or 2.0**16
    return Finding(
        severity="warning", rank=only_rank(evidence), step=since, subject=f"{course.scaler} driven",
        summary=f"Step {since}: since then {count} of {history.stop - since} steps are skipped, as the loss scale "
        f"{_grows(course)} after every {max(1, course.interval)} steps without an overflow.",
        evidence=(f"{because}.", *sentences(evidence, blame(evidence, skipped))),
        remedy=(remedies.scaler(text, device_of(evidence), last / 2, 2_000, because),),
        facts={
            "skipped_steps": len(skipped), "steps": steps, "growths": grown, "growth_interval": course.interval,
            "cause_class": "loss_scale",
        },
    )  # fmt: skip


def _is_led_by_growth(course: Course, grown: int, skipped: int) -> bool:
    """Whether about as much is grown as is lost again: by a factor of 8 it takes three skips of a half to come down."""
    up, down = course.settings.growth_factor or 2.0, course.settings.backoff_factor or 0.5
    return up > 1 > down > 0 and grown * np.log2(up) >= -np.log2(down) * skipped / 2


def _grows(course: Course) -> str:
    factor = course.settings.growth_factor
    return "doubles" if factor in (None, 2.0) else f"is multiplied by {factor:g}"


def _falling(evidence: Evidence, course: Course, limits: Thresholds) -> Finding | None:
    """It falls again before it has grown, time after time."""
    history = evidence.loss_scales
    searched = course.begin + course.interval  # the search for a first scale takes its time
    groups = [each for each in bursts(history, course.scaler) if each.first >= max(course.since, searched)]
    groups = [each for each in groups if each.after < each.before]
    if (history.last(course.scaler) or 0.0) < LEAST_SCALE:
        return None  # then it is a collapse
    if len(groups) < FEW_FALLS or groups[-1].last - groups[0].first < 2 * course.interval:
        return None
    if course.stop - groups[-1].last > 2 * course.interval:
        return None
    drops = [drop for each in groups for drop in each.drops]
    blamed, first, last = blame(evidence, drops), groups[0], groups[-1]
    rank = "" if blamed.rank is None else f", rank {blamed.rank}"
    who = "" if blamed.entry is None else f"; {the(blamed.entry)} is what overflows most often"
    module = "" if blamed.entry is None else module_of(evidence, blamed.entry)
    because = f"{len(groups)} falls in {last.last - first.first} steps, no growth between them"
    tries = [] if blamed.entry is None else [remedies.float32(module, because)]
    return Finding(
        severity="warning", rank=blamed.rank, step=first.first, subject=f"{course.scaler} falling",
        tensor=None if blamed.entry is None else blamed.entry.fqn,
        kind=None if blamed.entry is None else blamed.entry.kind,
        summary=f"Step {first.first}{rank}: since then the loss scale only falls, from {scale(first.before)} to "
        f"{scale(last.after)}{who}.",
        evidence=(f"{because[0].upper()}{because[1:]}; {_interval(course)}.", *sentences(evidence, blamed)),
        remedy=(*tries, remedies.clip(because), remedies.bf16(device_of(evidence), "it needs no scaler")),
        facts={"falls": len(groups), "scale_before": first.before, "scale_after": last.after},
    )  # fmt: skip


def _standing(evidence: Evidence, course: Course, limits: Thresholds) -> Finding | None:
    """It stays the same though nothing overflows and there is room."""
    history = evidence.loss_scales
    since = max([course.begin, *(each.step + 1 for each in history.recent if each.step >= course.begin)])
    steps, last = course.stop - since, history.last(course.scaler)
    if last is None or last >= PAST_USE or steps < limits["intervals"] * course.interval:
        return None
    reported = history.coarse(since, course.stop)
    same = np.nanmax(reported.high[course.scaler]) == np.nanmin(reported.low[course.scaler])
    room = least_headroom(evidence)
    if not same or reported.skipped.any() or room is None or room < limits["least_room"]:
        return None
    lost = gradient_underflow.measure(evidence, 0.5)
    underflows = lost is not None and len(lost.lost) > 0
    return Finding(
        severity="warning" if underflows else "info", step=since, subject=f"{course.scaler} standing",
        summary=f"Step {since}: the loss scale has been {scale(last)} for {steps} steps without an overflow and has "
        "not grown.",
        evidence=tuple(_still(course, room, steps, len(lost.lost) if lost else 0)),
        remedy=(remedies.scaler(
            "Give the scaler a growth_interval that the run reaches, and call update() without a value.",
            device_of(evidence), max(last, 2.0**16), 2_000,
            f"{steps} clean steps, and {room:.1f} bits of headroom in the largest gradient",
        ),),
        facts={"scale": last, "steps": steps, "headroom_bits": room, "growth_interval": course.interval},
    )  # fmt: skip


def _still(course: Course, room: float, steps: int, lost: int) -> Iterator[str]:
    yield f"{_interval(course)[0].upper()}{_interval(course)[1:]}; {steps} steps have passed."
    yield f"The largest gradient of the last {WINDOW} steps has {room:.1f} bits of headroom: the scale could be larger."
    yield why_standing(course.settings, steps)
    if lost:
        yield f"{lost} gradients underflow."


def _interval(course: Course) -> str:
    if course.settings.interval is not None:
        return f"its growth_interval is {course.settings.interval} clean steps"
    if course.is_seen:
        return f"this scaler grew after {course.interval} clean steps before"
    return f"scalers grow after {course.interval} clean steps as a rule"


def least_headroom(evidence: Evidence) -> float | None:
    """Bits between the largest gradient in float16 of the last steps and its limit; None where there is none.

    Infinite where all of them are zero.
    """
    rows = narrow_gradients(evidence)
    if not rows or evidence.start >= evidence.whole_stop:
        return None
    start = max(evidence.start, evidence.whole_stop - WINDOW)
    block = evidence.window(("amax", "call_count"), evidence.whole_stop - start)
    seen = [row for row in rows if (block.columns["call_count"][row] > 0).any()]
    limit = np.array([limits_of(evidence.tensors.entries[row].dtype).max_finite for row in seen])
    if not seen:
        return None
    with np.errstate(divide="ignore"):
        return float(np.log2(limit / block.columns["amax"][seen].max(axis=1)).min())


def narrow_gradients(evidence: Evidence) -> Sequence[int]:
    """Gradients in float16."""
    entries = evidence.tensors.entries
    return [row for row, each in enumerate(entries) if each.kind in BACKWARD and each.dtype == "float16"]


RULE = Rule(
    name="loss_scale_never_grows",
    title="Loss scale does not grow",
    severity="warning",
    explanation="A scaler doubles the scale after some clean steps and halves it after an overflow, so that it stays "
    "as high as gradients allow: one skipped step each time it grows is how it should be. Here it stands still though "
    "there is room, only falls, or grows so often that many steps are lost.",
    check=check,
    thresholds=(
        Threshold("growth_interval", 2_000, "steps", "Clean steps to growth, where it is not known: torch's default."),
        Threshold("intervals", 3, "growth intervals", "So long without growth is too long."),
        Threshold("least_room", 6, "bits", "Headroom of the largest gradient from which growth would be of use."),
        Threshold("skipped_share", 0.2, "of the steps", "More skipped steps than this are too many."),
    ),
)
