"""Gradients that are far larger when they are clipped, or when the optimizer takes them, than any rank's backward has
made them, or far smaller when the optimizer takes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.core.text import ranks_text
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, SERIES_PART, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.gradients.last_update import last_update
from rangewatch_server.rules.gradients.shrunk_gradients import shrunk
from rangewatch_server.rules.gradients.unscaled_in_hooks import unscaled_in_hooks
from rangewatch_server.rules.loss.series import NORMS, TAKEN, loss_name
from rangewatch_server.rules.loss.spike.bands import loss_left
from rangewatch_server.rules.optimizers import sampled_gradient
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import MOST_RANKS, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

SERIES = ("clipped_norm", *NORMS)
"""What the agent reads where torch's function clips, and what loops log."""

HISTORY, FEWEST = 64, 16
"""Steps before that show what is usual, and values of them that are needed."""

MOST_PLACES = 4
"""Columns of the run in which the norm jumps that are looked at, the first ones."""

SUMMED = 2.0
"""How many times as large as the sum of what all ranks' gradients allow it must be: elements are rounded."""

USUAL = 0.95
"""Quantile of the values before that a jump is measured from."""


CONSTANT = 1.5
"""How many times the least part of what the backward made, that the optimizer was given in the steps before, may be the
largest, for a division by one number to have been left out."""


class Measured(msgspec.Struct, frozen=True):
    """`series`: the size of `gradients`, numbers of tensors; their norm, or the largest magnitude of one, `of`."""

    series: str
    gradients: np.ndarray
    of: str = ""


class Jump(msgspec.Struct, frozen=True):
    """At `step` the norm was `norm`, where `most` is what the ranks' own gradients allow, and `usual` what had been.
    `of`: it is the largest magnitude of the gradient of that parameter, and no norm. `part`: of what the backward made
    the optimizer was given that part until then, and `now` at this step; 0 where it was not always the same."""

    name: str
    step: int
    norm: float
    most: float
    usual: float
    of: str = ""
    part: float = 0.0
    now: float = 0.0


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding of each: the first step at which they are far larger, updates that are far smaller, and a
    last update that nothing comes after."""
    yield from _grown(evidence, limits["factor"])
    yield from _shrunk(evidence)
    yield from last_update(evidence)


def _shrunk(evidence: Evidence) -> Iterator[Finding]:
    found = next(shrunk(evidence), None) or unscaled_in_hooks(evidence)
    if found is not None:
        yield found


def _grown(evidence: Evidence, factor: float) -> Iterator[Finding]:
    for measured in _measured(evidence):
        for step in _high_steps(evidence, measured.series, factor):
            jump = _judged(evidence, measured, step, factor)
            if jump is not None:
                yield _finding(evidence, jump)
                return


def _measured(evidence: Evidence) -> Iterator[Measured]:
    """The norm of all gradients, and what the optimizer was given of one."""
    name = next((each for each in SERIES if evidence.has_series(each)), None)
    gradients = tensors_of(evidence, "grad")
    if name is not None and len(gradients):
        yield Measured(name, gradients)
    sampled = sampled_gradient(evidence)
    if sampled is not None and evidence.has_series(TAKEN):
        of, tensor = sampled
        yield Measured(TAKEN, np.array([tensor]), of)


def _high_steps(evidence: Evidence, name: str, factor: float) -> Iterator[int]:
    """The first steps at which the norm rises so far above what it was, of the first columns in which one does."""
    start, stop = evidence.start, evidence.whole_stop
    level = level_for(stop - start, SCAN_COLUMNS)
    row = np.array([evidence.run.names().series[name]])
    block = evidence.run.slice(SERIES_PART, list(evidence.ranks), level, start, stop, ("count", "max"), row)
    largest = np.where(block.columns["count"][0] > 0, block.columns["max"][0], np.nan)
    places, size = 0, FANOUT**level
    for column in range(1, len(largest)):
        before = largest[max(0, column - HISTORY) : column]
        before = before[np.isfinite(before)]
        if not len(before) or not np.isfinite(largest[column]) or largest[column] < factor * np.median(before):
            continue
        deadline.check()
        low = (block.first + column) * size
        values = evidence.largest(name, low, min(stop, low + size))
        high = np.flatnonzero(np.isfinite(values) & (values >= factor * np.median(before)))
        if len(high):
            yield low + int(high[0])
            places += 1
        if places == MOST_PLACES:
            return


def _judged(evidence: Evidence, measured: Measured, step: int, factor: float) -> Jump | None:
    """None where the gradients themselves had grown so, or what was usual is not known."""
    low, gradients = max(evidence.start, step - HISTORY), measured.gradients
    norms = evidence.largest(measured.series, low, step + 1)
    columns = ("call_count", "amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, step + 1, columns, gradients)
    calls, amax, nans, infs = (np.asarray(block.columns[each], np.float64) for each in columns)
    sizes = [1 if measured.of else np.prod(evidence.tensors.entries[each].shape) for each in gradients.tolist()]
    numel = np.array(sizes, np.float64)
    known = (calls > 0).any(axis=0) & ((nans + infs).sum(axis=0) == 0) & np.isfinite(norms) & (norms > 0)
    most = np.sqrt((amax**2 * numel[:, None]).sum(axis=0))
    most = _of_scale(evidence, most, norms, known, low, step + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(known & (most > 0), norms / most, np.nan)
    before = ratio[:-1][np.isfinite(ratio[:-1])]
    if not known[-1] or not most[-1] > 0 or len(before) < FEWEST:
        return None
    usual = float(np.quantile(before, USUAL))
    is_of_one = bool(measured.of) and 0 < before.max() <= CONSTANT * before.min()
    if ratio[-1] < factor * usual or (ratio[-1] < SUMMED * len(evidence.ranks) and not is_of_one):
        return None
    usual_norm = float(np.median(norms[:-1][known[:-1]]))
    parts = (float(np.median(before)), float(ratio[-1])) if is_of_one else (0.0, 0.0)
    return Jump(measured.series, step, float(norms[-1]), float(most[-1]), usual_norm, measured.of, *parts)


def _of_scale(
    evidence: Evidence, most: np.ndarray, norms: np.ndarray, known: np.ndarray, start: int, stop: int
) -> np.ndarray:
    """What gradients allow without the loss scale, where the norm is of such, as it mostly is."""
    if not evidence.is_loss_scaled:
        return most
    scale = evidence.series("loss_scale", start, stop)
    unscaled = most / np.where(scale > 0, scale, 1.0)
    before = known & (unscaled > 0)
    before[-1] = False
    return unscaled if before.any() and np.median(norms[before] / unscaled[before]) <= 1.0 else most


def _finding(evidence: Evidence, jump: Jump) -> Finding:
    ranks = evidence.ranks[:MOST_RANKS]
    values = {rank: float(evidence.series(jump.name, jump.step, jump.step + 1, rank)[0]) for rank in ranks}
    least = np.sqrt(jump.part * jump.now) if jump.part else SUMMED * len(evidence.ranks)
    high = [rank for rank, value in values.items() if value > least * jump.most]
    is_of_all = len(evidence.ranks) > 1 and len(high) == sum(map(np.isfinite, values.values())) and len(high) > 1
    rank = high[0] if len(high) == 1 else None
    hidden = " The clip made it small again: the loss need not show it." if jump.name == "clipped_norm" else ""
    return Finding(
        severity="" if _is_harmful(evidence, jump) else "info",
        rank=rank, step=jump.step, subject="changed",
        summary=f"{place(jump.step, rank)}: {_how(jump)}: {_measure(jump)}.",
        evidence=tuple(_evidence(evidence, jump, high, hidden, is_of_all=is_of_all)),
        remedy=tuple(_remedies(jump, is_of_all=is_of_all)),
        facts={
            "norm": jump.norm, "most": jump.most, "usual": jump.usual, "ranks": high, "since_step": jump.step,
            "cause_class": "communication" if is_of_all else "clip",
        },
    )  # fmt: skip


HARMFUL = 1e4
"""Times as large as usual from which on what the optimizer was given of one gradient ruins a weight, or Adam's squares.
"""

SOON = 4
"""Steps behind it in which a loss that leaves its band says that it did harm."""


def _is_harmful(evidence: Evidence, jump: Jump) -> bool:
    """A norm that no gradient allows is of a broken reduction or clip. One gradient may be some times as large now and
    then, by a loop that means it, as where rows are weighted."""
    times = jump.now / jump.part if jump.part else jump.norm / jump.most
    name = loss_name(evidence)
    if not jump.of or times >= HARMFUL or name is None:
        return True
    after = range(jump.step + 1, min(jump.step + 1 + SOON, evidence.whole_stop))
    return any(loss_left(evidence, name, each) for each in after)


def _how(jump: Jump) -> str:
    if jump.part:
        return (
            f"the optimizer was given gradients {jump.now / jump.part:.3g} times as large as what is otherwise made of "
            "them after the backward"
        )
    times = jump.norm / jump.most
    return f"after the backward something made the gradients {times:.3g} times as large as they can have been"


def _measure(jump: Jump) -> str:
    if jump.of:
        return f"that of {jump.of} held {jump.norm:.3g} when the optimizer took it"
    return f"their norm was {jump.norm:.3g} when they were clipped"


def _evidence(evidence: Evidence, jump: Jump, high: list[int], hidden: str, *, is_of_all: bool) -> Iterator[str]:
    whose = "any rank" if len(evidence.ranks) > 1 else "this rank"
    if jump.of:
        yield (
            f"As {whose} computed it its largest magnitude was {jump.most:.3g} at most at this step. In the steps "
            f"before the optimizer was given {jump.usual:.3g} (median). It is the one gradient that is looked at there."
        )
    else:
        yield (
            f"Of the gradients as {whose} computed them the largest magnitudes allow a norm of {jump.most:.3g} at most "
            f"at this step. That of the steps before was {jump.usual:.3g} (median).{hidden}"
        )
    if is_of_all:
        yield (
            f"Cause (likely): the reduction over ranks. {ranks_text(tuple(high)).capitalize()} have it alike, as what "
            "comes out of an all_reduce is alike: one rank's part, or a bucket on its way, was changed."
        )
        yield "Against that: code that multiplies gradients on every rank after the reduction looks the same."
        yield "Whose part it was is not known: before the reduction no rank's gradient was large."
        yield (
            "What would decide: compare each rank's buckets right before the reduction, in the communication hook, and "
            "the gradients right after it."
        )
    else:
        what = "the optimizer's step" if jump.of else "the clip"
        if jump.part:
            yield (
                f"In the steps before it was given {jump.part:.3g} times what the backward had made, each time, and at "
                f"this step {jump.now:.3g} times."
            )
            yield (
                "Cause (likely): a division of the gradients between the backward and the optimizer's step that was "
                "left out, or another number in it: a scale that the loss was multiplied by, or a count."
            )
        else:
            yield (
                f"Cause (likely): code between the backward and {what}, such as one that multiplies gradients, divides "
                "them by a count, a norm or a scale that is next to 0, or adds noise to them."
            )
        yield f"What would decide: print the norm right after the backward, and before {what}."


def _remedies(jump: Jump, *, is_of_all: bool) -> Iterator[Remedy]:
    what = f"the gradient of {jump.of}" if jump.of else "the norm"
    because = f"{what} is beyond what the gradients allow that the ranks computed"
    if jump.part:
        because = f"of what the backward made the optimizer was given {jump.now / jump.part:.3g} times the usual part"
    if is_of_all:
        yield Remedy(
            "Check each rank's buckets where a communication hook changes them, right before the reduction and right "
            "after it; without a hook, test the links between the ranks.",
            "rangewatch.attach(model, optimizer, kinds=['output', 'grad_output', 'grad', 'reduced_grad'])", because,
        )  # fmt: skip
    else:
        what = "the clip"
        if jump.of:
            is_left = (
                "a branch may leave a division out" if jump.part else "what they are divided by may be 0 or nearly so"
            )
            what = f"the optimizer's step: {is_left}"
        yield Remedy(f"Look at what writes to gradients between loss.backward() and {what}.", "", because)
    if jump.of:
        yield Remedy(
            "Go back to a checkpoint from before that step, the optimizer's state with it: a momentum goes on along "
            "that one gradient, and squares as Adam keeps them make all updates after it next to nothing.", "", because,
        )  # fmt: skip
        return
    yield Remedy(
        "Leave out a step whose norm is so large: a clip keeps the direction of what made it.",
        "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n"
        f"if norm < {1e2 * jump.usual:.3g}:  # waits for the device\n    optimizer.step()", because,
    )  # fmt: skip


RULE = Rule(
    name="gradients_changed",
    title="Gradients change after the backward",
    severity="warning",
    explanation="The norm by which gradients were clipped jumped far beyond what the gradients allow that the ranks' "
    "backwards made. The reduction over ranks, a communication hook or code of the loop changed them; the clip then "
    "hides it, since all updates are of one size after it. Or what the optimizer was given of one small parameter "
    "jumped so. Or the optimizer is given a thousandth of what the backward made, as where gradients are divided by "
    "the loss scale twice, be it by a hook in the backward and by the scaler; or, with the newest update, NaN or Inf. "
    "The norm is that of torch's own clip_grad_norm_ (torch 2.6 or newer), or one logged as grad_norm; all of it needs "
    "the kind `grad`.",
    check=check,
    thresholds=(Threshold("factor", 16.0, "times its usual height", "How far the norm must jump."),),
    explains=(
        "exploding_gradient",
        "loss_spike",
        "short_spike",
        "update_ratio",
        "unchanged_weights",
        "learning_lost",
        "loss_plateau",
    ),
    leads_to=("first_nonfinite", "loss_nonfinite"),
)
