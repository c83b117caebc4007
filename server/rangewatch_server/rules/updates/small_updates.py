"""A learning rate that has been far too low since the first step, so that nothing is learned: named by what a schedule
makes of the rate it was given, and by the size of the updates.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch.wire.events import Clipping, LossFunction, Optimizers
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import first_and_last, loss_name
from rangewatch_server.rules.loss.series import rates as rates_of
from rangewatch_server.rules.optimizers import keeps_squares
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank, recent, tensors_of, unscaled
from rangewatch_server.rules.rule import Finding, Remedy

UPDATE_FRACTION = "update_fraction"

STEPS = 1_024
"""First steps of a run in which it is searched for."""

LASTING = 128
"""Steps for which it must have been so from the first one on."""

LOW = 0.05
"""Part of the rate that the schedule was given, below which it must have stayed."""

NEAR = 0.05
"""How far from the square of that the first rate may be: it may have moved before it was read."""

STAIR = 24
"""Steps for which the rate stays as it is, at the least on average: a warm-up moves it at each step."""

FAR = 4_000
"""Steps that the warm-up would take at this pace, or more."""

MANY, LOW_OF_MANY = 50, 0.2
"""Moves that it would take, or more, each of `STAIR` steps: a warm-up that counts epochs has 5 to 40 of them; and the
part of the rate below which it must have stayed."""

TINY = 5e-6
"""Of the weight: no update so far was larger. Fine-tuning at 1e-5 makes some of 1e-4."""

CHANCE = 0.8
"""Part of ln(classes) that the first loss must be where the rate has never moved: what is resumed has learned more, and
its schedule may be over."""

READINGS, FEWEST = 6, 8
"""Of the size of updates, and of the learning rate."""

FLAT, STILL, RISEN = 0.8, 0.98, 1.1
"""Parts of the first loss: below the first it has learned; above the second nothing has happened; above the third
something else has. What falls a little at a low rate is the loss of first outputs that are worse than chance."""

MOVED, MOVED_BY_SGD = 1e-3, 0.01
"""Of its weight: updates that come to less than this in all of their steps. Of a large model that is tuned by an Adam
less may be enough."""

LOW_OF_SGD = 1e-5
"""Learning rate of SGD that makes such updates: at a higher one gradients are small, as where nothing is left to learn.
"""

USUAL, JUMPED = 0.25, 2.0
"""Quantile of the first losses below which the last ones, in the median, have fallen; and how many times the highest of
the first one of the last must be for something else to have happened."""

FEW = 32

GROWS = 1.05

ADAM = ("Adam", "AdamW", "NAdam", "RAdam")
EPS = 1e-8
"""That of these optimizers, unless another was given."""

UNDER_EPS = 0.1
"""Part of `EPS` below which all gradients are for that to be the cause: updates are then a tenth of what the rate says
at most."""


def too_small(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding."""
    stop = min(evidence.start + STEPS, evidence.whole_stop)
    if stop - evidence.start < LASTING:
        return
    every = rates_of(evidence, evidence.start, stop)
    at = np.flatnonzero(np.isfinite(every))
    # A trainer may log it once in ten steps.
    if len(at) < FEWEST or at[-1] - at[0] < LASTING - LASTING // FEWEST:
        return
    medians = first_and_last(evidence, FEW, stop)
    if not every[at].max() > 0 or medians is None or not medians[0] > 0:
        return
    part, known = medians[1] / medians[0], _fractions(evidence, stop)
    # Whatever a noisy loss does, weights that have hardly moved have learned nothing, unless it shows.
    far = known.max() * (stop - evidence.start) if len(known) >= READINGS else np.inf
    is_still = far <= (MOVED if keeps_squares(evidence) else MOVED_BY_SGD) and _is_noise(evidence, stop)
    if part > RISEN and not is_still:
        return
    rates, steps = every[at], evidence.start + at
    initial = max((known.initial_lr for _, known in evidence.details(Optimizers)), default=0.0)
    if part >= FLAT and _is_squared(evidence, rates, initial):
        yield _of_lambda(evidence, steps, rates, initial, part)
        return
    if rates[-1] < rates[0]:
        return
    clips = [known for _, known in evidence.details(Clipping)]
    if (part >= STILL or is_still) and clips and clips[-1].far_steps and not keeps_squares(evidence):
        yield _of_clip(evidence, steps, clips[-1].max_norm, part)
        return
    low = LOW_OF_MANY if _has_many(rates, initial) else LOW
    is_stairs = rates.max() <= low * initial and _is_stairs(evidence, steps, rates, initial)
    if is_stairs and part >= FLAT:
        yield _of_schedule(evidence, steps, rates, initial, part)
    elif is_stairs and _has_many(rates, initial):
        yield _of_slow_schedule(evidence, steps, rates, initial, part)
    elif (part >= STILL or is_still) and rates[-1] <= GROWS * rates[steps >= steps[-1] - LASTING // 2][0]:
        is_sgd = not keeps_squares(evidence) and rates.max() <= LOW_OF_SGD
        is_tiny = known.max(initial=0.0) <= TINY or (is_still and is_sgd)
        if len(known) >= READINGS and known.max() > 0 and is_tiny:
            least = _under_eps(evidence)
            largest = float(known.max())
            if least is None:
                yield _of_size(evidence, steps, rates, largest, part)
            else:
                yield _of_eps(evidence, steps, rates, largest, part, least)


def _is_noise(evidence: Evidence, stop: int) -> bool:
    """Whether the last losses are no other than single ones of the first are, and none of them has jumped."""
    name, low = loss_name(evidence), evidence.start
    if name is None:
        return False
    first, last = evidence.series(name, low, low + FEW), evidence.series(name, max(low, stop - FEW), stop)
    first, last = first[np.isfinite(first)], last[np.isfinite(last)]
    if not len(first) or not len(last) or last.max() > JUMPED * first.max():
        return False
    return bool(np.quantile(first, USUAL) <= np.median(last) <= first.max())


def _is_squared(evidence: Evidence, rates: Array, initial: float) -> bool:
    """Whether (n,) rates are far below what a schedule was given: its square at most, for a while, or such that fall
    where the model knows nothing yet."""
    if not initial > 0 or rates.max() > LOW * initial:
        return False
    is_square = bool(abs(rates.max() / initial / initial - 1) <= NEAR) and rates.argmax() + FEWEST <= len(rates)
    falls = bool((np.diff(rates) <= 0).all() and rates[-1] < rates[0])
    return is_square or (falls and _begins_at_chance(evidence))


def _is_stairs(evidence: Evidence, steps: Array, rates: Array, initial: float) -> bool:
    """Whether (n,) rates stay as they are for many steps each, and are far from `initial` at this pace."""
    moved = np.diff(rates) != 0
    moves, count, last = int(moved.sum()), int(steps[-1] - steps[0]) + 1, float(rates[-1])
    pace = count * initial / last if last > 0 else np.inf
    if not (FAR <= pace < np.inf or _has_many(rates, initial)):
        return False
    if not moves:
        return _begins_at_chance(evidence)
    # Where it is logged now and then, a rate that moves at each step has moved at each reading, too.
    return moves * STAIR <= count and int(np.diff(steps)[~moved].sum()) >= STAIR


def _has_many(rates: Array, initial: float) -> bool:
    """Whether so many moves as (n,) rates have made are a small part of those that lead to `initial`."""
    moves, rise = int(np.count_nonzero(np.diff(rates))), float(rates[-1] - rates[0])
    return moves > 1 and rise > 0 and MANY <= initial / (rise / moves) < FAR


def _begins_at_chance(evidence: Evidence) -> bool:
    """Whether the first loss is that of outputs that know nothing."""
    known = next((each for _, each in evidence.details(LossFunction)), None)
    medians = first_and_last(evidence, FEW)
    if known is None or known.classes < 1 or medians is None:
        return False
    return medians[0] >= CHANCE * float(np.log(max(2, known.classes)))


def _fractions(evidence: Evidence, stop: int) -> Array:
    if not evidence.has_series(UPDATE_FRACTION):
        return np.zeros(0)
    values = evidence.largest(UPDATE_FRACTION, evidence.start, stop)
    return values[np.isfinite(values)]


def _of_schedule(evidence: Evidence, steps: Array, rates: Array, initial: float, part: float) -> Finding:
    rank, last = only_rank(evidence), float(rates[-1])
    moves, count, pace = _pace(steps, rates, initial)
    stairs = (
        f"it has moved {moves} time{'s' if moves > 1 else ''} in {count} steps, and would be there at about step "
        f"{pace:,}"
        if moves else f"it has not moved once in {count} steps"
    )  # fmt: skip
    what = (
        "an epoch or an evaluation moves the scheduler, and not each step, for which its warm-up is meant"
        if moves else "nothing moves the scheduler, whose warm-up begins so"
    )  # fmt: skip
    return _finding(
        evidence, rank, steps, rates, part,
        f"it has been {last:.3g} at most, where its schedule was given {initial:.3g}: {stairs}.",
        f"Cause (likely): the schedule of the learning rate: {what}. Against that: so long a start may be meant.",
        Remedy(
            "Move the scheduler after each optimizer step, or count its warm-up in what moves it.",
            "def move(optimizer, scheduler):  # in Lightning: return {'scheduler': scheduler, 'interval': 'step'}\n"
            "    optimizer.step()\n"
            "    scheduler.step()",
            f"the rate is {last / initial:.2%} of what the schedule was given"
            + (", and the loss has hardly fallen" if part >= FLAT else ""),
        ),
    )  # fmt: skip


def _pace(steps: Array, rates: Array, initial: float) -> tuple[int, int, int]:
    """How often (n,) rates have moved, in how many steps, and the step at which they come to `initial` so."""
    count = int(steps[-1] - steps[0]) + 1
    return int(np.count_nonzero(np.diff(rates))), count, round(count * initial / float(rates[-1]))


def _of_slow_schedule(evidence: Evidence, steps: Array, rates: Array, initial: float, part: float) -> Finding:
    """Info: the loss falls, and more slowly than it was meant to."""
    found = _of_schedule(evidence, steps, rates, initial, part)
    rank, since, (moves, count, pace) = only_rank(evidence), int(steps[0]), _pace(steps, rates, initial)
    return msgspec.structs.replace(
        found, severity="info",
        summary=f"{place(since, rank)}: the learning rate is warmed up once in about {count // (moves + 1)} steps: at "
        f"this pace it comes to the {initial:.3g} that its schedule was given at about step {pace:,}.",
        evidence=(
            found.evidence[0],
            "Cause (possible): the schedule of the learning rate: an epoch or an evaluation moves the scheduler, and "
            "not each step, for which so many moves are meant. Against that: the loss falls, and so long a start may "
            "be meant.",
            found.evidence[2],
        ),
    )  # fmt: skip


def _of_lambda(evidence: Evidence, steps: Array, rates: Array, initial: float, part: float) -> Finding:
    is_square = abs(rates.max() / initial / initial - 1) <= NEAR
    given = f"about the square of the {initial:.3g}" if is_square else f"far below the {initial:.3g}"
    return _finding(
        evidence, only_rank(evidence), steps, rates, part,
        f"it has been {rates.max():.3g} at most, {given} that its schedule was given.",
        "Cause (likely): the schedule of the learning rate: what LambdaLR is given is a factor of the rate, and a "
        "function that returns the rate itself is multiplied by it once more. Against that: the end of a longer "
        "schedule, as after a resume, is as low.",
        Remedy(
            "Have the function return a factor, 1.0 at the full rate.",
            "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + 0.0003 * step) ** -0.75)",
            f"the rate was {rates.max() / initial:.2%} at most of what the schedule was given",
        ),
    )  # fmt: skip


def _of_size(evidence: Evidence, steps: Array, rates: Array, largest: float, part: float) -> Finding:
    return _finding(
        evidence, only_rank(evidence), steps, rates, part,
        f"no update has been larger than {largest:.2g} of its weight at a learning rate of {rates[-1]:.3g}: nothing is "
        "learned.",
        "Cause (likely): the learning rate, far too low for this optimizer and these weights: about 0.001 of a weight "
        "is usual a step, and 0.0001 where a trained model is tuned. Against that: gradients of next to nothing give "
        "such updates without Adam.",
        Remedy(
            "Raise the learning rate, tenfold at a time, until the loss falls; look for a unit, a scale or a group "
            "that makes it so small.",
            "for group in optimizer.param_groups:\n    group['lr'] *= 10",
            f"updates are {largest:.2g} of their weights at most, and the loss stays where it was",
        ),
    )  # fmt: skip


def _of_clip(evidence: Evidence, steps: Array, max_norm: float, part: float) -> Finding:
    rank, since, seen = only_rank(evidence), int(steps[0]), int(steps[-1])
    return Finding(
        rank=rank, step=since, subject="low rate", kind=None,
        summary=f"{place(since, rank)}: gradients are clipped to {max_norm:.3g}, less than a hundredth of their norm, "
        "in each step: nothing is learned.",
        evidence=(
            f"The loss is {part:.0%} of what it was at first, at step {seen} (medians of {FEW} values).",
            "Cause (likely): clipping, whose limit is far below what gradients are. Where the optimizer does not "
            "divide by their size, that is as a rate that is as many times too low.",
            "What would decide: print what clip_grad_norm_ returns, and train a hundred steps with that as the limit.",
        ),
        remedy=(
            Remedy(
                "Clip to about the norm that gradients usually have.",
                "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)",
                f"the norm is more than a hundred times the limit of {max_norm:.3g} in each step",
            ),
        ),
        facts={"since_step": since, "seen_step": seen, "max_norm": max_norm, "cause_class": "clip"},
    )  # fmt: skip


def _under_eps(evidence: Evidence) -> float | None:
    """The largest gradient of any parameter in the last steps, where an Adam's eps is far above it."""
    names = {name for _, known in evidence.details(Optimizers) for name in known.classes}
    if not names or not names <= set(ADAM):
        return None
    points = recent(evidence)
    bits = unscaled(evidence, points)[tensors_of(evidence, "grad")]
    known = bits[np.isfinite(bits)]
    largest = 2.0 ** float(known.max()) if len(known) else np.inf
    return largest if 0 < largest <= UNDER_EPS * EPS else None


def _of_eps(
    evidence: Evidence, steps: Array, rates: Array, largest: float, part: float, gradient: float
) -> Finding:  # fmt: skip
    rank, since = only_rank(evidence), int(steps[0])
    return Finding(
        rank=rank, step=since, subject="low rate", kind=None,
        summary=f"{place(since, rank)}: gradients are far below Adam's eps: the largest of any parameter is "
        f"{gradient:.2g}, so that no update has been larger than {largest:.2g} of its weight at a learning rate of "
        f"{rates[-1]:.3g}: nothing is learned.",
        evidence=(
            f"The loss is {part:.0%} of what it was at first, at step {int(steps[-1])} (medians of {FEW} values).",
            f"Cause (likely): the optimizer's eps, {EPS:g} where no other was given. Adam divides a gradient by its "
            "own size and eps: what is far below eps gives an update that is as far below the learning rate.",
            "What would decide: train a hundred steps from the same weights with an eps of 1e-15.",
        ),
        remedy=(
            Remedy(
                "Bring inputs, targets and loss to a scale of about 1, as by their own mean and deviation; or give the "
                "optimizer a smaller eps.",
                "for group in optimizer.param_groups:\n    group['eps'] = 1e-15",
                f"the largest gradient is {gradient:.2g}",
            ),
        ),
        facts={"since_step": since, "seen_step": int(steps[-1]), "lr": float(rates[-1]), "gradient": gradient,
               "cause_class": "optimizer"},
    )  # fmt: skip


def _finding(
    evidence: Evidence, rank: int | None, steps: Array, rates: Array, part: float, text: str, cause: str, remedy: Remedy
) -> Finding:
    since, seen = int(steps[0]), int(steps[-1])
    return Finding(
        rank=rank, step=since, subject="low rate", kind=None,
        summary=f"{place(since, rank)}: the learning rate is far too low: since the first step {text}",
        evidence=(
            f"The loss is {part:.0%} of what it was at first, at step {seen} (medians of {FEW} values).",
            cause,
            "What would decide: train a hundred steps from the same weights at a rate ten times as high.",
        ),
        remedy=(remedy,),
        facts={"since_step": since, "seen_step": seen, "lr": float(rates[-1]), "cause_class": "learning_rate"},
    )  # fmt: skip
