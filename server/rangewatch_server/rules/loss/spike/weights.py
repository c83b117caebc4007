"""Of a jump, what speaks for the weights, and for what moves them: learning rate, optimizer, other code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from rangewatch.wire.events import Optimizers, StateLoaded
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.learning_rate import HISTORY, Rate, ago_text
from rangewatch_server.rules.loss.series import RATES, UPDATE, WRITTEN
from rangewatch_server.rules.loss.spike.bands import EARLIER, FEWEST, Riser, is_input_side, left_band, name_of
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.optimizers import keeps_squares, sampled_weights
from rangewatch_server.rules.phrases import the
from rangewatch_server.rules.recent import tensors_of

SELDOM, FAR = 0.1, 8.0
"""Where code writes to weights in more than this share of the steps, it must be so many times as large as ever."""

UPDATE_BITS = 3.0
"""Bits by which an update must be above what was usual."""


def of_rate(rate: Rate | None) -> Iterator[Candidate]:
    if rate is not None:
        yield Candidate("learning_rate", rate.weight, (rate.text,))


def of_loaded(evidence: Evidence, step: int) -> Iterator[Candidate]:
    """An optimizer's state was loaded right before, and not twice before that without a jump."""
    loaded = sorted({(event.step, known.name) for event, known in evidence.details(StateLoaded) if event.step <= step})
    if not loaded or step - loaded[-1][0] > RESUMED or len(loaded) > 2:
        return
    at, name = loaded[-1]
    if step - at > EARLIER:
        text = (
            f"The state of the optimizer ({name}) was loaded at step {at}, {ago_text(at, step)}: what came with it "
            "besides moments (the learning rate, the momentum, maximize) holds since, and the loss has risen since."
        )
        yield Candidate("optimizer", 0.62, (text,), ("what its parameter groups were before and are now.",))
        return
    text = (
        f"The state of the optimizer ({name}) was loaded at step {at}, {ago_text(at, step)}: its moments need not be "
        "those of the gradients before, and an update goes by them."
    )
    yield Candidate("optimizer", 0.84, (text,), ("its moments themselves (kinds exp_avg and exp_avg_sq record them).",))


def of_update(evidence: Evidence, step: int, gradients: list[Riser], *, has_rate: bool) -> Iterator[Candidate]:
    """The optimizer moved a parameter further than ever right before, by a gradient and a rate that were as usual."""
    low = max(evidence.start, step - EARLIER - HISTORY)
    if has_rate or step - low <= FEWEST or not evidence.has_series(UPDATE) or not len(tensors_of(evidence, "grad")):
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.log2(evidence.largest(UPDATE, low, step))
    left = left_band(low, np.where(np.isfinite(bits), bits, np.nan), step - 1)
    if left is None or left[1] < UPDATE_BITS or any(each.step <= left[0] for each in gradients):
        return
    names = known.names if (known := sampled_weights(evidence)) is not None else ()
    far = (
        f"The update of step {left[0]} moved {next(iter(names), 'a parameter')} {2.0 ** left[1]:.3g} times as far as "
        "usual, by gradients and a learning rate that were as usual"
    )
    clips = evidence.series(CLIPPED, low, left[0] + 1) if evidence.has_series(CLIPPED) else np.full(2, np.nan)
    if np.mean(np.isfinite(clips[:-1])) > USUALLY and not np.isfinite(clips[-1]):
        text = f"{far}: the gradients were clipped in the steps before, and not in that one."
        yield Candidate("clip", 0.92, (text,))
        return
    against = ["its moments themselves (kinds exp_avg and exp_avg_sq record them)."]
    if any(known.groups for _, known in evidence.details(Optimizers)):
        against.append("the learning rate of that parameter's own group: the largest of all is recorded.")
    if keeps_squares(evidence):
        text = f"{far}: what the optimizer keeps from step to step (its moments, its count of steps) had changed."
        yield Candidate("optimizer", 0.9, (text,), tuple(against))
        return
    text = (
        f"{far}: what stands between the backward and the step (a clip that was left out, a division), or what the "
        "optimizer keeps from step to step, had changed."
    )
    yield Candidate("optimizer", 0.84, (text,), tuple(against))


CLIPPED, USUALLY = "clipped_norm", 0.9
"""Series of a clip by torch's own function, and the part of the steps before in which there was one."""

RESUMED = 32
"""Steps after a state was loaded within which a loss that rises by and by speaks for it."""

RESTORED = 16
"""Steps after a state was loaded in which what was not loaded with it may still show: averages are written back now and
then."""

FURTHER = 2.0
"""How many times as far as ever before weights must then be written, where they are written now and then."""


def of_restored(evidence: Evidence, step: int) -> list[Candidate]:
    """Weights were overwritten soon after a resume: by what the resume has not restored."""
    loaded = sorted({(event.step, known.name) for event, known in evidence.details(StateLoaded) if event.step <= step})
    if not loaded or step - loaded[-1][0] > RESTORED or len(loaded) > 2 or not evidence.has_series(WRITTEN):
        return []
    at, name = loaded[-1]
    low = max(evidence.start, at - HISTORY)
    values = np.nan_to_num(evidence.largest(WRITTEN, low, step + 1), nan=np.inf, neginf=0.0)
    before, begin = values[: at - low], max(at, step - EARLIER)
    since = values[begin - low :]
    if len(before) < FEWEST or not len(since) or not since.max() > FURTHER * before.max():
        return []
    when = begin + int(since.argmax())
    text = (
        f"The state of the optimizer ({name}) was loaded at step {at}, {ago_text(at, step)}; and between the update of "
        "step "
        f"{when - 1} and the forward of step {when} code other than it changed the weights further than ever before: "
        "what writes there, as slow weights or an average, has a state of its own that was not restored with it."
    )
    return [Candidate("optimizer", 0.94, (text,))]


ANEW, LEARNED, AGAIN = 0.85, 1.5, 8
"""Part of the first loss from which on it is as at first; how far above what it was it must be for that; and the first
values whose median is taken, and those since the jump."""


def of_begun_anew(evidence: Evidence, name: str | None, step: int, usual: float) -> list[Candidate]:
    """Weights were written right before, and the loss is where the training began: what was learned is not in them."""
    if name is None or not evidence.has_series(WRITTEN) or step - evidence.start < FEWEST:
        return []
    first = evidence.series(name, evidence.start, evidence.start + AGAIN)
    now = evidence.series(name, step, min(step + AGAIN, evidence.whole_stop))
    first, now = first[np.isfinite(first)], now[np.isfinite(now)]
    if not len(first) or not len(now) or not usual > 0:
        return []
    begun = float(np.median(first))
    if not begun >= LEARNED * usual or not ANEW <= float(np.median(now[:2])) / begun <= 1 / ANEW:
        return []
    low, since = max(evidence.start, step - EARLIER - HISTORY), max(evidence.start, step - EARLIER)
    values = np.nan_to_num(evidence.largest(WRITTEN, low, step + 1), nan=np.inf, neginf=0.0)
    before, last = values[: since - low], values[since - low :]
    if not last.max(initial=0.0) > FAR * before.max(initial=0.0):
        return []
    when = since + int(last.argmax())
    text = (
        f"Between the update of step {when - 1} and the forward of step {when} code other than the optimizer changed "
        f"the weights, and the loss is where the training began: {float(np.median(now[:2])):.4g} where it was "
        f"{begun:.4g} at first. What was learned is not in them: a model that was made anew and into which no "
        "checkpoint went, or one whose names do not fit (strict=False passes over them)."
    )
    return [Candidate("weight", 0.95, (text,))]


class Thawed(msgspec.Struct, frozen=True):
    """Parameters that got their first gradient at `step`, right before: the first of them by name, and how many."""

    step: int
    fqn: str
    count: int


def thawed_before(evidence: Evidence, step: int) -> Thawed | None:
    """Those that are trained since a few steps up to `step` only, where others have been for long."""
    gradients, low = tensors_of(evidence, "grad"), max(evidence.start, step - EARLIER)
    if not len(gradients) or low - evidence.start < FEWEST:
        return None
    level = level_for(low - evidence.start, SCAN_COLUMNS)
    size = FANOUT**level
    if size > SCAN_COLUMNS * FANOUT:  # single steps are read from there on, and these are too many
        return None
    end = low // size * size  # a column that holds later steps says nothing
    ranks, names = list(evidence.ranks), ("call_count",)
    early = evidence.run.slice(RANGES, ranks, level, evidence.start, end, names, gradients).columns["call_count"]
    late = evidence.run.slice(RANGES, ranks, 0, max(evidence.start, end), step + 1, names, gradients)
    calls = np.asarray(late.columns["call_count"], np.float64)
    had = np.asarray(early).any(axis=1) | calls[:, : low - max(evidence.start, end)].any(axis=1)
    now = calls[:, low - max(evidence.start, end) :]
    fqns = [evidence.tensors.entries[int(each)].fqn for each in gradients]
    known = {fqns[int(each)] for each in np.flatnonzero(had)}  # it may have had another dtype
    new = [int(each) for each in np.flatnonzero(~had & now.any(axis=1)) if fqns[int(each)] not in known]
    if not new or not known:
        return None
    at = low + int(np.flatnonzero(now[new].any(axis=0))[0])
    return Thawed(at, fqns[new[0]], len(new))


def of_thawed(evidence: Evidence, thawed: Thawed | None) -> Iterator[Candidate]:
    if thawed is None:
        return
    name = next((each for each in RATES if evidence.has_series(each)), None)
    rates = np.zeros(0) if name is None else evidence.series(name, thawed.step, thawed.step + 1)
    rate = f", at a learning rate of up to {rates[0]:.3g}" if len(rates) and np.isfinite(rates[0]) else ""
    more = f" and {thawed.count - 1} more parameters" if thawed.count > 1 else ""
    text = (
        f"{thawed.fqn}{more} got the first gradient of the run at step {thawed.step}{rate}: the rate of a new "
        "parameter group, or of layers that were just unfrozen, may be far too large for them, though no rate rose."
    )
    yield Candidate(
        "learning_rate", 0.84, (text,), ("the rate of that group by itself: the largest of all is recorded.",)
    )


def of_written(evidence: Evidence, step: int) -> list[Candidate]:
    """Code other than the optimizer changed weights right before, where it does not do so in most steps."""
    if not evidence.has_series(WRITTEN):
        return []
    low, begin = max(evidence.start, step - EARLIER - HISTORY), max(evidence.start, step - EARLIER)
    values = np.nan_to_num(evidence.largest(WRITTEN, low, step + 1), nan=np.inf, neginf=0.0)
    before, last = values[: begin - low], values[begin - low :]
    at = np.flatnonzero(last > 0)
    if len(before) < FEWEST or not len(at):
        return []
    change = float(last[at[-1]])
    if np.mean(before > 0) > SELDOM and change < FAR * before.max():
        return []
    names = known.names if (known := sampled_weights(evidence)) is not None else ()
    when = begin + int(at[-1])
    size = f" by up to {change:.3g}" if np.isfinite(change) else ""
    text = (
        f"Between the update of step {when - 1} and the forward of step {when} code other than the optimizer changed "
        f"the weights: {_either(names)}{size}."
    )
    against = ("whether all others were changed too: these alone are compared in each step.",)
    return [Candidate("weight", 0.92, (text,), against)]


def _either(names: Sequence[str]) -> str:
    """What is compared: the series has the largest change of all of them."""
    if not names:
        return "those that are compared"
    return names[0] if len(names) == 1 else f"{' or '.join(names)}, or {'both' if len(names) == 2 else 'all of them'},"


def of_weight(
    evidence: Evidence, step: int, outputs: list[Riser], ratio: Riser | None, gradients: list[Riser]
) -> Iterator[Candidate]:
    if ratio is not None:
        text = (
            f"The first update that was unusually large for its weight is that of "
            f"{evidence.tensors.entries[ratio.tensor].fqn}, {2.0**ratio.bits:.3g} times the usual at step {ratio.step}."
        )
        yield Candidate("weight", 0.75, (text,))
    first = outputs[0] if outputs else None
    if first is None or is_input_side(evidence, first):
        return
    early = [each for each in gradients if each.step < step]
    yield from _of_far_gradient(evidence, first, early)
    text = (
        f"{name_of(evidence, first)} is the first that rose, {2.0**first.bits:.3g} times at step {first.step}. What "
        "comes before it in call order was as usual, and so was the batch: a weight of that module had moved."
    )
    yield Candidate("weight", 0.82, (text,))
    if early:
        text = f"Gradients had risen before, at step {early[0].step}: the update that followed was as large."
        yield Candidate(
            "learning_rate", 0.65, (text,), ("whether the learning rate had risen: it did not, or was not logged.",)
        )


GRADIENT_BITS = 10.0
"""Bits by which a gradient must have risen in a step whose loss was usual, to explain how far its module moved."""


def _of_far_gradient(evidence: Evidence, moved: Riser, early: list[Riser]) -> Iterator[Candidate]:
    """The first that rose is of a module whose own gradient was far too large right before, and an update is as large
    as its gradient. The loss had not risen then: it is no batch's, but what the backward made of it."""
    fqn, entries = evidence.tensors.entries[moved.tensor].fqn, evidence.tensors.entries
    own = [each for each in early if entries[each.tensor].fqn.rpartition(".")[0] == fqn]
    far = next((each for each in own if each.bits >= GRADIENT_BITS), None)
    if far is None or keeps_squares(evidence):
        return
    text = (
        f"{name_of(evidence, far)} had risen {2.0**far.bits:.3g} times at step {far.step}, while the loss was as "
        f"usual, and the update that followed moved the module as far: {the(entries[moved.tensor])} rose "
        f"{2.0**moved.bits:.3g} times at step {moved.step}."
    )
    yield Candidate("backward_arithmetic", 0.84, (text,))
