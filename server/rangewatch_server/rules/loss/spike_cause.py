"""What a loss that jumped and stayed finite speaks for: the batch, the learning rate, or a weight that moved too far.

Each is weighed by what was recorded: what rose first in call order, and in which step; the learning rate as logged; the
losses of the batch's rows; on which ranks. The best is named with how sure that is and what would decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch.wire.events import Optimizers, SampledWeights, StateLoaded
from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.activations.attention_logits import are_logits
from rangewatch_server.rules.batch_rows import outliers, row_sentences, rows_of
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.changed_mask import of_changed_mask
from rangewatch_server.rules.loss.learning_rate import HISTORY, Rate, ago_text, odd_rate
from rangewatch_server.rules.loss.raised_term import raised_term
from rangewatch_server.rules.loss.series import RATES
from rangewatch_server.rules.nonfinite.causes import LIKELY, SHOWN, Candidate
from rangewatch_server.rules.optimizers import keeps_squares
from rangewatch_server.rules.phrases import the
from rangewatch_server.rules.recent import MOST_RANKS, Array, tensors_of
from rangewatch_server.rules.rule import Remedy
from rangewatch_server.rules.trend import MAD

FEWEST = 12
"""Points of the steps before a jump that show what is usual that are needed."""

EARLIER = 3
"""Steps before it in which a cause may lie."""

EMBEDDINGS = ("Embedding", "EmbeddingBag")

WRITTEN, SELDOM, FAR = "weights_written", 0.1, 8.0
"""Series of what code other than the optimizer changed weights by. Where that is usual, in more than this share of the
steps, it must be so many times as large as ever."""

INPUTS, INPUT_BITS = ("input_rms", "input_rms_1", "input_rms_2"), 0.75
"""Series of the size of what the model is given, and the bits by which it must be beyond all that it was before."""

TARGETS = "target_rms"
"""Series of the size of what the loss compares with."""

UPDATE, UPDATE_BITS = "sampled_update", 3.0
"""Series of how far an update moved a small parameter, and the bits by which it must be above what was usual."""

NORMS = ("grad_norm", "train/grad_norm", "gradient_norm", "total_norm")

OUT_BITS, OUT_DEVIATIONS = 0.75, 8.0
"""A tensor has left its band if it is so far above all before it, in bits and in standard deviations of its steps."""

FAR_BITS = 3.0
"""Bits within one step that no update makes whose gradients were as usual."""

READ_EVERY = 4
"""Steps from one reading of what the model is given to the next, on an accelerator."""

SHORT = 2
"""Steps within which what the weights did to the loss is not over."""

LASTING = 50
"""Steps for which no single batch keeps a loss high."""

FACTOR_BITS, FACTOR_SLACK, FACTOR_PART = 3.0, 2.0, 0.2
"""Bits by which a loss must have risen whose gradients say that it was multiplied: as far as it, within so many bits
and this part of its own. A squared error of odd targets raises them by half as many bits, a bounded one by none."""

FACTOR_ROOM = 4.0
"""A cross entropy of rows that were nearly right and are wrong raises both alike, by up to 1 over the part that was
wrong, and so many times as far where rows no longer pull apart: a factor is only likely above that."""

ODD_RANK = 3.0
"""How many times as large as of the others the rise of the loss of one rank must be that is alone with it."""


class Riser(msgspec.Struct, frozen=True):
    """A tensor that left its band first at `step`, by `bits` above what was usual."""

    tensor: int
    step: int
    bits: float


class Explanation(msgspec.Struct, frozen=True):
    """Of a jump: sentences, advice, and what else a finding has. `rank`: the one that is alone with it."""

    cause: str
    sureness: str
    sentences: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    tensor: str | None
    kind: str | None
    rank: int | None
    weights: dict[str, float]
    reason: str = ""
    """The first sentence that speaks for the cause."""

    def facts(self) -> dict[str, object]:
        """For the finding's; none where nothing speaks for any cause."""
        if not self.cause:
            return {}
        return {"cause_class": self.cause, "sureness": self.sureness, "candidates": self.weights}


def explained(
    evidence: Evidence, name: str | None, step: int, usual: float = 0.0, back: int | None = None
) -> Explanation:
    """Of the series `name`, which left `usual` at `step` and was low again at `back`; None: of the gradients alone."""
    is_short = back is not None and back - step <= SHORT
    is_lasting = _is_lasting(evidence, step, back)
    rank, whose = _odd_rank(evidence, name, step, usual)
    outputs = risers(evidence, activations(evidence), step)
    gradients = risers(evidence, tensors_of(evidence, "grad"), step)
    ratio = _first_ratio(evidence, step)
    is_of_all_since = is_lasting and not outputs
    logits = [each for each in outputs if are_logits(evidence.tensors.entries[each.tensor])]
    rate, written, thawed = odd_rate(evidence, step), _written(evidence, step), thawed_before(evidence, step)
    # A loss is computed before the update of its own step: what is trained since that very step has not moved yet.
    thawed = None if thawed is not None and thawed.step >= step else thawed
    anew = _of_begun_anew(evidence, name, step, usual)
    restored, calls = [] if anew else _of_restored(evidence, step), _of_calls(evidence, name, step, gradients, outputs)
    term = raised_term(evidence, step, HISTORY)
    every = [
        *anew, *written, *restored, *calls, *([] if term is None else [term.candidate]),
        *_of_update(evidence, step, gradients, has_rate=rate is not None),
        *_of_rate(rate), *_of_loaded(evidence, step), *_of_thawed(evidence, thawed), *of_changed_mask(evidence, step),
        *_of_data(
            evidence, name, rank, step, outputs, gradients,
            is_other=term is not None or (rate is not None and rate.weight >= SHOWN),
            is_short=is_short, is_lasting=is_lasting,
        ),
        *(() if is_short else _of_weight(evidence, step, outputs, ratio, gradients)),
        *(() if outputs or name is None else _of_factor(evidence, name, step, rank)),
        *(() if outputs or name is None else _of_no_slope(evidence, name, step)),
    ]  # fmt: skip
    best: dict[str, Candidate] = {}
    for each in sorted(every, key=lambda each: -each.weight):
        known = best.get(each.cause, msgspec.structs.replace(each, supports=(), against=()))
        best[each.cause] = Candidate(
            each.cause, known.weight, known.supports + each.supports, known.against or each.against
        )
    order = sorted(best.values(), key=lambda each: (-each.weight, each.cause))
    first = order[0] if order else Candidate("", 0.0)
    is_of_calls = bool(calls) and first.supports[:1] == calls[0].supports
    place = _written_place(evidence, outputs) if written else _place(evidence, first.cause, outputs, ratio, rate)
    if term is not None and first.cause == term.candidate.cause:
        place = term.entry
    sentences = [
        *_verdict(
            order, are_written=bool(written), is_of_all_since=is_of_all_since, is_of_calls=is_of_calls
        ),
        *([whose] if whose else []),
        *(f"Attention logits left their band with it: {_name(evidence, each)}." for each in logits[:1]),
        *_settings(evidence, step), *row_sentences(evidence.run, _ranks(evidence, rank), step),
    ]  # fmt: skip
    return Explanation(
        first.cause, first.sureness if order else "", tuple(sentences),
        tuple(
            _remedies(
                order, step, rate, place, is_lasting=is_lasting, is_of_all_since=is_of_all_since,
                are_written=bool(written or restored),
                thawed=thawed,
                is_of_calls=is_of_calls,
            )
        ),
        None if place is None else place.fqn, None if place is None else place.kind, rank,
        {each.cause: each.weight for each in order}, next(iter(first.supports), ""),
    )  # fmt: skip


def loss_left(evidence: Evidence, name: str, step: int) -> bool:
    """Whether the series left its band in the steps up to `step`."""
    low = max(evidence.start, step - EARLIER - HISTORY)
    values = evidence.series(name, low, step + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where(values > 0, np.log2(values), np.nan)
    return _left_band(low, bits, step) is not None


def _is_lasting(evidence: Evidence, step: int, back: int | None) -> bool:
    """Whether it stayed for longer than one batch does."""
    return (evidence.whole_stop if back is None else back) - step >= LASTING


def _ranks(evidence: Evidence, rank: int | None) -> Iterable[int]:
    return evidence.ranks[:MOST_RANKS] if rank is None else (rank,)


def activations(evidence: Evidence) -> Array:
    """Outputs but for single numbers, such as the loss of a model that returns it."""
    entries = evidence.tensors.entries
    outputs = tensors_of(evidence, "output")
    return outputs[[int(np.prod(entries[each].shape)) > 1 for each in outputs.tolist()]] if len(outputs) else outputs


def _odd_rank(evidence: Evidence, name: str | None, step: int, usual: float) -> tuple[int | None, str]:
    """The rank that is alone with it, and a sentence."""
    if len(evidence.ranks) == 1:
        return evidence.ranks[0], ""
    if name is None:
        return None, ""
    values = {rank: float(evidence.series(name, step, step + 1, rank)[0]) for rank in evidence.ranks[:MOST_RANKS]}
    known = sorted(((value, rank) for rank, value in values.items() if np.isfinite(value)), reverse=True)
    if len(known) < 2:
        return None, ""
    (highest, rank), (second, _) = known[:2]
    if highest - usual >= ODD_RANK * max(second - usual, 0.0) and highest > usual:
        return rank, f"Rank {rank} alone is so high: {highest:.4g}; of the others the highest is {second:.4g}."
    return None, f"It is so on several ranks, from {known[-1][0]:.4g} to {highest:.4g} at step {step}."


def risers(evidence: Evidence, tensors: Array, step: int) -> list[Riser]:
    """Those that left their band in the steps up to `step`, in call order; of each the first such step."""
    low, stop = max(evidence.start, step - EARLIER - HISTORY), step + 1
    if not len(tensors) or stop - low <= FEWEST:
        return []
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, ("amax", "nan_count", "inf_count"), tensors)
    amax, nans, infs = (np.asarray(block.columns[each], np.float64) for each in ("amax", "nan_count", "inf_count"))
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where((amax > 0) & (nans + infs == 0), np.log2(amax), np.nan)
        if evidence.is_loss_scaled and evidence.tensors.entries[int(tensors[0])].kind == "grad":
            bits = bits - np.log2(evidence.series("loss_scale", low, stop))
    risers = []
    for tensor, row in zip(tensors.tolist(), bits, strict=True):
        left = _left_band(low, row, step)
        if left is not None:
            risers.append(Riser(tensor, *left))
    position = evidence.tensors.position
    return sorted(risers, key=lambda each: (each.step, int(position[each.tensor])))


def _left_band(low: int, row: Array, step: int) -> tuple[int, float] | None:
    """The first step of the last `EARLIER` + 1 at which (n,) bits from step `low` on left what was before them."""
    begin = max(0, step - EARLIER - low)
    before = row[:begin][np.isfinite(row[:begin])]
    if len(before) < FEWEST:
        return None
    usual, highest = float(np.median(before)), float(before.max())
    scatter = MAD * float(np.median(np.abs(before - usual)))
    bar = max(highest + OUT_BITS, usual + OUT_DEVIATIONS * scatter)
    at = np.flatnonzero(row[begin:] > bar)
    return (low + begin + int(at[0]), float(row[begin + at[0]] - usual)) if len(at) else None


def _first_ratio(evidence: Evidence, step: int) -> Riser | None:
    """The first weight, in call order, whose update over its size left its band before the jump."""
    updates, weights = tensors_of(evidence, "update"), tensors_of(evidence, "weight")
    low, entries = max(evidence.start, step - EARLIER - 4 * HISTORY), evidence.tensors.entries
    if not len(updates) or not len(weights) or step <= low:
        return None
    change = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, step, ("amax",), updates).columns["amax"]
    size = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, step, ("amax",), weights).columns["amax"]
    rows = {entries[int(each)].fqn: row for each, row in zip(weights, np.asarray(size, np.float64), strict=True)}
    first: list[Riser] = []
    for tensor, row in zip(updates.tolist(), np.asarray(change, np.float64), strict=True):
        known = rows.get(entries[tensor].fqn)
        if known is None or not (known > 0).any():
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            bits = np.where(row > 0, np.log2(row / np.median(known[known > 0])), np.nan)
        left = _left_band(low, bits, step - 1)
        if left is not None:
            first.append(Riser(tensor, *left))
    position = evidence.tensors.position
    return min(first, key=lambda each: (each.step, int(position[each.tensor])), default=None)


def _of_rate(rate: Rate | None) -> Iterator[Candidate]:
    if rate is not None:
        yield Candidate("learning_rate", rate.weight, (rate.text,))


def _of_loaded(evidence: Evidence, step: int) -> Iterator[Candidate]:
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


def _of_update(evidence: Evidence, step: int, gradients: list[Riser], *, has_rate: bool) -> Iterator[Candidate]:
    """The optimizer moved a parameter further than ever right before, by a gradient and a rate that were as usual."""
    low = max(evidence.start, step - EARLIER - HISTORY)
    if has_rate or step - low <= FEWEST or not evidence.has_series(UPDATE) or not len(tensors_of(evidence, "grad")):
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.log2(evidence.largest(UPDATE, low, step))
    left = _left_band(low, np.where(np.isfinite(bits), bits, np.nan), step - 1)
    if left is None or left[1] < UPDATE_BITS or any(each.step <= left[0] for each in gradients):
        return
    names = next((known.names for _, known in reversed(evidence.details(SampledWeights))), ())
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


def _of_restored(evidence: Evidence, step: int) -> list[Candidate]:
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


def _of_begun_anew(evidence: Evidence, name: str | None, step: int, usual: float) -> list[Candidate]:
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
    new = np.flatnonzero(~had & now.any(axis=1))
    if not len(new) or not had.any():
        return None
    at = low + int(np.flatnonzero(now[new].any(axis=0))[0])
    return Thawed(at, evidence.tensors.entries[int(gradients[new[0]])].fqn, len(new))


def _of_thawed(evidence: Evidence, thawed: Thawed | None) -> Iterator[Candidate]:
    if thawed is None:
        return
    name = next((each for each in RATES if evidence.has_series(each)), None)
    rates = np.zeros(0) if name is None else evidence.series(name, thawed.step, thawed.step + 1)
    rate = f", at a learning rate of up to {rates[0]:.3g}" if len(rates) and np.isfinite(rates[0]) else ""
    more = f" and {thawed.count - 1} more parameters" if thawed.count > 1 else ""
    text = (
        f"{thawed.fqn}{more} got the first gradient of the run at step {thawed.step}{rate}: the rate of a new "
        "parameter "
        "group, or of layers that were just unfrozen, may be far too large for them, though no rate rose."
    )
    yield Candidate(
        "learning_rate", 0.84, (text,), ("the rate of that group by itself: the largest of all is recorded.",)
    )


def _written(evidence: Evidence, step: int) -> list[Candidate]:
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
    names = next((known.names for _, known in reversed(evidence.details(SampledWeights))), ())
    when = begin + int(at[-1])
    size = f" by up to {change:.3g}" if np.isfinite(change) else ""
    text = (
        f"Between the update of step {when - 1} and the forward of step {when} code other than the optimizer changed "
        f"the weights: {' and '.join(names) or 'those that are compared'}{size}."
    )
    against = ("whether all others were changed too: these alone are compared in each step.",)
    return [Candidate("weight", 0.92, (text,), against)]


def _of_data(
    evidence: Evidence, name: str | None, rank: int | None, step: int, outputs: list[Riser], gradients: list[Riser], *,
    is_other: bool, is_short: bool, is_lasting: bool,
) -> Iterator[Candidate]:  # fmt: skip
    known = [rows for each in _ranks(evidence, rank) if (rows := rows_of(evidence.run, each, step)) is not None]
    if any(outliers(rows) for rows in known):
        yield Candidate("data", 0.93, ("Rows of its batch have far larger losses than the others.",))
    early = [each for each in (*outputs, *gradients) if each.step < step]
    if early or is_other:
        return
    moved = given_moved(evidence, rank, step)
    if moved is not None:
        text, at, _ = moved
        yield Candidate(
            "data",
            0.9 if at == step else 0.8,
            (text,),
            () if known else ("which rows: rangewatch.batch(ids=...) names them.",),
        )
        return
    first = next((each for each in outputs if each.step == step), None)
    against = ("the losses of its rows. rangewatch.batch(ids=..., losses=...) records them.",)
    if is_short and name is not None:
        text = "It was low again right after it: weights that had moved too far would have kept it high."
        yield Candidate("data", 0.78, (text,), () if known else against)
    if first is None and name is not None and evidence.tensors.entries:
        is_read = evidence.has_series(TARGETS) and np.isfinite(evidence.series(TARGETS, step, step + 1, rank)).any()
        text = "Nothing that the model computes left its usual range before the loss did"
        if is_lasting:
            size = ", whose size is as usual," if is_read else ""
            text += (
                ", and it has stayed for longer than a single batch does: the targets of all batches since"
                f"{size} or how the loss is computed since then (a mask that was turned around, a weight of a term or "
                "of rows that was raised), are what is left."
            )
        elif is_read:
            text += ", nor did the size of its targets: which target is of which row is what is left."
        else:
            text += ": its targets are what is left."
        yield Candidate("data", 0.8 if gradients else 0.55, (text,), () if known else against)
    elif first is not None and _is_input_side(evidence, first):
        text = f"{_name(evidence, first)} rose {2.0**first.bits:.3g} times at that very step, and nothing before it."
        if not _stays(evidence, first):
            yield Candidate("data", 0.8, (text,), () if known else against)
        else:
            text += " It has stayed so: that is of all batches since, or of its weights."
            is_far = first.bits >= FAR_BITS
            text += " No gradient had risen, so that no update moved a weight so far within one step." * is_far
            yield Candidate("data", 0.7 if is_far else 0.57, (text,), () if known else against)
            yield Candidate("weight", 0.55, ("It may be what an update or other code left its weights at.",))
    if rank is not None and len(evidence.ranks) > 1:
        yield Candidate("data", 0.85, (f"Rank {rank} alone has it, and its weights are those of the others.",))


def given_moved(evidence: Evidence, rank: int | None, step: int) -> tuple[str, int, float] | None:
    """What the model, or the loss, is given left its range at that very step, upwards or downwards, the step at which
    that was read, and by how many bits; None where it did not. Read later, it may be a state that the step itself has
    made so, as of a recurrence."""
    found = (_given_moved(evidence, each, rank, step) for each in (TARGETS, *INPUTS))
    return next((each for each in found if each), None)


def _given_moved(evidence: Evidence, name: str, rank: int | None, step: int) -> tuple[str, int, float] | None:
    low = max(evidence.start, step - HISTORY)
    if not evidence.has_series(name) or step - low < FEWEST:
        return None
    values = evidence.series(name, low, min(step + READ_EVERY, evidence.whole_stop), rank)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where(values > 0, np.log2(values), np.nan)
    before, since = bits[: step - low], bits[step - low :]
    at = step + int(np.argmax(np.isfinite(since)))
    before, since = before[np.isfinite(before)], since[np.isfinite(since)]
    if len(before) < 3 or not len(since):
        return None
    now, usual = float(since[0]), float(np.median(before))
    scatter = MAD * float(np.median(np.abs(before - usual)))
    away = max(INPUT_BITS, OUT_DEVIATIONS * scatter)
    if before.min() - away < now < before.max() + away:
        return None
    when = "changed at that very step" if at == step else f"had changed by step {at}, where it was read next"
    if name == TARGETS:
        subject, what = "What the loss compares with", "targets"
    else:
        subject = "What the model is given"
        what = "first floating input" if name == INPUTS[0] else f"floating input {INPUTS.index(name) + 1}"
    return (
        f"{subject} {when}: the root mean square of its {what}, by a sample, is {2.0**now:.3g}, and was "
        f"{2.0**usual:.3g} before, between {2.0 ** float(before.min()):.3g} and {2.0 ** float(before.max()):.3g}.",
        at,
        abs(now - usual),
    )


def _of_factor(evidence: Evidence, name: str, step: int, rank: int | None) -> Iterator[Candidate]:
    """The loss rose at that step, and the gradients by the same factor."""
    low, tensors = max(evidence.start, step - HISTORY), tensors_of(evidence, "grad")
    if step - low < FEWEST or not len(tensors):
        return
    ranks = list(_ranks(evidence, rank))
    amax = evidence.run.slice(RANGES, ranks, 0, low, step + 1, ("amax",), tensors).columns["amax"]
    with np.errstate(divide="ignore", invalid="ignore"):
        gradients = np.log2(np.where(amax > 0, amax, np.nan))
        if evidence.is_loss_scaled:
            gradients = gradients - np.log2(evidence.series("loss_scale", low, step + 1))
        loss = np.log2(evidence.series(name, low, step + 1, rank))
    known = np.isfinite(gradients[:, -1]) & np.isfinite(gradients[:, :-1]).any(axis=1)
    if not known.any() or not np.isfinite(loss[:-1]).any():
        return
    rise = float(np.median(gradients[known, -1] - np.nanmedian(gradients[known, :-1], axis=1)))
    usual = float(np.nanmedian(loss[:-1]))
    factor = float(loss[-1]) - usual
    if not FACTOR_BITS <= factor < np.inf or abs(rise - factor) > min(FACTOR_SLACK, FACTOR_PART * factor):
        return
    texts = (
        f"The loss rose to about {2.0**factor:.3g} times what was usual, the gradients with it to about "
        f"{2.0**rise:.3g} times, and no output did.",
        f"Odd targets would raise the gradients of a squared error by the root of that, to {2.0 ** (factor / 2):.3g} "
        "times.",
    )
    if 2.0**rise * -np.expm1(-(2.0**usual)) > FACTOR_ROOM:
        yield Candidate("forward_arithmetic", 0.82, texts)
    else:
        text = "A cross entropy of rows that the model had nearly right, and has wrong now, rises so by itself."
        yield Candidate("forward_arithmetic", 0.5, (texts[0], text))


MORE_OFTEN, STEADY = 2.0, 0.9
"""How many times as often as before modules must be called, and the part of the steps before in which they were called
as often as usual."""


class Calls(msgspec.Struct, frozen=True):
    """(n,) how often modules were called in a step before, and at the step; `is_more`: of which it is more often."""

    usual: Array
    now: Array
    is_more: Array


def _calls(evidence: Evidence, step: int) -> Calls | None:
    """None where too little is known."""
    low, outputs = max(evidence.start, step - HISTORY), activations(evidence)
    if step - low < FEWEST or not len(outputs):
        return None
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, step + 1, ("call_count",), outputs)
    calls = np.asarray(block.columns["call_count"], np.float64)
    calls = calls[(calls > 0).all(axis=1)] / len(evidence.ranks)
    if not len(calls):
        return None
    usual, now = np.median(calls[:, :-1], axis=1), calls[:, -1]
    is_more = ((calls[:, :-1] == usual[:, None]).mean(axis=1) >= STEADY) & (now >= MORE_OFTEN * usual)
    return Calls(usual, now, is_more)


SUMMED = 0.25
"""Part of the bits of so many microbatches from which on gradients are their sum: of what differs from one to the next
that has half of them, and their mean none or fewer."""


def _are_summed(evidence: Evidence, calls: Calls, step: int) -> bool | None:
    """Whether the gradients of most parameters have risen as a sum of so many does; None where there are none."""
    gradients, low = tensors_of(evidence, "grad"), max(evidence.start, step - HISTORY)
    if not len(gradients):
        return None
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, step + 1, ("amax",), gradients)
    amax = np.asarray(block.columns["amax"], np.float64)
    if evidence.is_loss_scaled:
        scale = evidence.series("loss_scale", low, step + 1)
        amax = amax / np.where(scale > 0, scale, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.log2(amax)
    bits = bits[np.isfinite(bits).all(axis=1)]
    if not len(bits):
        return None
    rise = float(np.median(bits[:, -1] - np.median(bits[:, :-1], axis=1)))
    return rise >= SUMMED * float(np.log2((calls.now / calls.usual).min()))


def summed_losses(evidence: Evidence, step: int) -> tuple[int, int] | None:
    """How often the model was called in a step before and is since `step`, where gradients have not risen with it: they
    are averages, and a loss that rises as far is logged as a sum. None where it is not so."""
    calls = _calls(evidence, step)
    if calls is None or not calls.is_more.all() or _are_summed(evidence, calls, step) is not False:
        return None
    return int(calls.usual.min()), int(calls.now.min())


def longer_recurrence(evidence: Evidence, step: int) -> tuple[int, int] | None:
    """How often a part of the model was called in a step before and is since `step`, where no output has risen with it:
    more is to be foreseen, and nothing was multiplied. None where it is not so."""
    calls = _calls(evidence, step)
    if calls is None or risers(evidence, activations(evidence), step):
        return None
    longer = np.flatnonzero(calls.is_more & (calls.usual > 1))
    return (int(calls.usual[longer[0]]), int(calls.now[longer[0]])) if len(longer) else None


def _of_calls(
    evidence: Evidence, name: str | None, step: int, gradients: list[Riser], outputs: list[Riser]
) -> list[Candidate]:
    """From that very step on all of the model is called more often in a step, or a part of it that was called more than
    once is; and gradients have risen with it, or values. A loss is computed of values: of a recurrence it rises where
    these do, and gradients with it."""
    calls = _calls(evidence, step)
    if calls is None:
        return []
    usual, now = calls.usual, calls.now
    if calls.is_more.all():
        text = (
            f"From that very step on the model is called {now.min():g} times in a step, where it was {usual.min():g}: "
            "the losses of microbatches, and their gradients, are summed unless each is divided by their number."
        )
        return [Candidate("optimizer", 0.9, (text,))] if _are_summed(evidence, calls, step) else []
    longer = np.flatnonzero(calls.is_more & (usual > 1))
    if (
        not len(longer)
        or not (gradients or outputs)
        or (not outputs and name is not None and loss_left(evidence, name, step))
    ):
        return []
    text = (
        f"From that very step on a part of the model is called {now[longer[0]]:g} times in a step, where it was "
        f"{usual[longer[0]]:g}: what one round multiplies values and gradients by is taken to that power."
    )
    return [Candidate("backward_arithmetic", 0.88, (text,))]


NO_SLOPE, SAME = 8, 1e-3
"""Steps from a jump on in which every gradient is 0, at most, and the part of the loss by which it varies then."""


def _of_no_slope(evidence: Evidence, name: str, step: int) -> Iterator[Candidate]:
    """The loss stays at one value from that step on, and every gradient is exactly 0, though no output is."""
    gradients, outputs = tensors_of(evidence, "grad"), activations(evidence)
    stop = min(evidence.whole_stop, step + NO_SLOPE)
    if not len(gradients) or not len(outputs) or step <= evidence.start or stop - step < EARLIER:
        return
    ranks, wanted = list(evidence.ranks), ("call_count", "amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, ranks, 0, step - 1, stop, wanted, gradients)
    calls, amax, nans, infs = (np.asarray(block.columns[each], np.float64) for each in wanted)
    values = evidence.series(name, step, stop)
    is_one = bool(np.isfinite(values).all()) and np.ptp(values) <= SAME * abs(float(values[0]))
    had, has = amax[:, 0].any(), (amax + nans + infs)[:, 1:].any()
    if not is_one or not had or has or not calls[:, 1:].any():
        return
    given = evidence.run.slice(RANGES, ranks, 0, step - 1, step + 1, ("amax",), outputs).columns["amax"]
    if ((given[:, 0] > 0) & (given[:, 1] == 0)).any():
        return  # units that died give no gradient either
    text = (
        f"From that very step on the loss is {float(values[0]):.6g} and every gradient exactly 0, while what the model "
        "gives is as usual: the loss no longer depends on it. A sum beyond 65504 in float16 is Inf, and what is "
        "divided by it 0; a clamp or a comparison gives a constant, too."
    )
    yield Candidate("no_gradient", 0.87, (text,), ("which operation: what the loss is computed of is not recorded.",))


def _of_weight(
    evidence: Evidence, step: int, outputs: list[Riser], ratio: Riser | None, gradients: list[Riser]
) -> Iterator[Candidate]:
    if ratio is not None:
        text = (
            f"The first update that was unusually large for its weight is that of "
            f"{evidence.tensors.entries[ratio.tensor].fqn}, {2.0**ratio.bits:.3g} times the usual at step {ratio.step}."
        )
        yield Candidate("weight", 0.75, (text,))
    first = outputs[0] if outputs else None
    if first is None or _is_input_side(evidence, first):
        return
    early = [each for each in gradients if each.step < step]
    yield from _of_far_gradient(evidence, first, early)
    text = (
        f"{_name(evidence, first)} is the first that rose, {2.0**first.bits:.3g} times at step {first.step}. What "
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
        f"{_name(evidence, far)} had risen {2.0**far.bits:.3g} times at step {far.step}, while the loss was as usual, "
        f"and the update that followed moved the module as far: {the(entries[moved.tensor])} rose "
        f"{2.0**moved.bits:.3g} times at step {moved.step}."
    )
    yield Candidate("backward_arithmetic", 0.84, (text,))


def _is_input_side(evidence: Evidence, riser: Riser) -> bool:
    """Whether its module is the first of the model that is called, so that the batch alone comes before it.

    An embedding gives rows of its weight, whatever the batch is.
    """
    if evidence.tensors.entries[riser.tensor].module in EMBEDDINGS:
        return False
    position = evidence.tensors.position
    outputs = activations(evidence)
    return bool(position[riser.tensor] <= position[outputs].min())


def _stays(evidence: Evidence, riser: Riser) -> bool:
    """Whether it is still as far above what was usual, by half, `SHORT` steps later: one batch is not."""
    low, stop = riser.step, riser.step + SHORT + 1
    chosen = np.array([riser.tensor])
    amax = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, ("amax",), chosen).columns["amax"][0]
    return bool(len(amax) > SHORT and amax[SHORT] >= amax[0] * 2.0 ** (-riser.bits / 2))


def _name(evidence: Evidence, riser: Riser) -> str:
    text = the(evidence.tensors.entries[riser.tensor])
    return f"{text[0].upper()}{text[1:]}"


def _place(
    evidence: Evidence, cause: str, outputs: list[Riser], ratio: Riser | None, rate: Rate | None
) -> TensorEntry | None:
    entries = evidence.tensors.entries
    if cause == "learning_rate" and rate is not None and rate.group is not None:
        first = rate.first
        return next(
            (each for each in map(entries.__getitem__, tensors_of(evidence, "grad")) if each.fqn == first), None
        )
    if cause != "weight":
        return None
    riser = ratio or next(iter(outputs), None)
    return None if riser is None else evidence.tensors.entries[riser.tensor]


def _written_place(evidence: Evidence, outputs: list[Riser]) -> TensorEntry | None:
    """The first output that rose, if a weight of its module is among those that are compared."""
    names = next((known.names for _, known in reversed(evidence.details(SampledWeights))), ())
    first = evidence.tensors.entries[outputs[0].tensor] if outputs else None
    return first if first and any(each.rpartition(".")[0] == first.fqn for each in names) else None


def _settings(evidence: Evidence, step: int) -> Iterator[str]:
    """What was logged of the learning rate and the norm of the gradients at that step."""
    texts = []
    for names, text in ((RATES, "learning rate"), (NORMS, "norm of the gradients")):
        name = next((each for each in names if evidence.has_series(each)), None)
        if name is None:
            continue
        values = evidence.series(name, max(evidence.start, step - HISTORY), step + 1)
        before = values[:-1][np.isfinite(values[:-1])]
        if np.isfinite(values[-1]):
            usual = f" (median of the steps before: {np.median(before):.3g})" if len(before) else ""
            texts.append(f"the {text} {values[-1]:.3g}{usual}")
    if texts:
        yield f"Logged at that step: {', '.join(texts)}."


NAMES = {
    "data": "the batch of that step", "learning_rate": "the learning rate",
    "weight": "a weight that had moved too far", "optimizer": "the optimizer's state",
    "forward_arithmetic": "what the loss was multiplied by",
    "clip": "gradients that were no longer clipped", "mask": "a mask that changed",
    "no_gradient": "how the loss is computed", "regularization": "a term of the loss that was raised",
    "backward_arithmetic": "arithmetic of the backward",
}  # fmt: skip

_OVERWRITTEN = "weights that were overwritten"
_ALL_SINCE = "the batches since that step, or how their loss is computed"
_BOTH_LOSSES = (
    "Compute the loss of a batch from before that step again: if it is as it was then, the batches since are others "
    "(harder, or with other targets); if it is not, the loss is computed otherwise. Either may be meant."
)
_AS_BEFORE = "Go back to a checkpoint from before it and repeat these steps with as many calls as before."
_COMPARE = "Compare all parameters right after the optimizer's step and right before the next forward."

TESTS = {
    "data": "Go back to a checkpoint from before it and leave out this batch: if the jump is gone, the batch made it.",
    "learning_rate": "Go back to a checkpoint from before it and repeat these steps with the rate as it was.",
    "optimizer": "Go back to a checkpoint from before it and repeat these steps with the state left as it was.",
    "forward_arithmetic": "Compute the loss of that batch again, outside of the loop: if it is usual there, the loop's "
    "code multiplied it.",
    "clip": "Go back to a checkpoint from before it and repeat these steps with the clip as it was.",
    "backward_arithmetic": "Run this step with torch.autograd.set_detect_anomaly(True).",
    "no_gradient": "Print each step of the loss's own computation for one batch, in its dtype and in float32.",
    "regularization": "Log each term of the loss by itself: the one that rose at that step is it.",
    "mask": "Compute the loss of one batch with the mask of a step before it and with that of now.",
    "weight": "Run the step before with this batch: a loss that is usual there speaks for the weights, not the batch.",
}  # fmt: skip


def _verdict(
    order: list[Candidate], *, are_written: bool, is_of_all_since: bool, is_of_calls: bool = False
) -> Iterator[str]:
    if not order:
        yield "Why is not known: nothing else that was recorded left its usual range with it."
        return
    best, *others = order
    is_written = are_written and best.cause == "weight"
    name, test = (_OVERWRITTEN, _COMPARE) if is_written else (NAMES[best.cause], TESTS[best.cause])
    if is_of_all_since and best.cause == "data":
        name, test = _ALL_SINCE, _BOTH_LOSSES
    if is_of_calls:
        name, test = ("gradients that are summed" if best.cause == "optimizer" else "a longer recurrence"), _AS_BEFORE
    yield f"Cause ({best.sureness}): {name}. {' '.join(best.supports)}"
    for text in best.against:
        yield f"Not known: {text}"
    for each in others[:1]:
        other = _ALL_SINCE if is_of_all_since and each.cause == "data" else NAMES[each.cause]
        yield f"Less likely: {other}. {' '.join(each.supports)}"
    yield f"What would decide: {test}"


def _remedies(
    order: list[Candidate],
    step: int,
    rate: Rate | None,
    place: TensorEntry | None,
    *,
    is_lasting: bool,
    is_of_all_since: bool,
    are_written: bool = False,
    thawed: Thawed | None = None,
    is_of_calls: bool = False,
) -> Iterator[Remedy]:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # after scaler.unscale_(optimizer)"
    is_named = bool(order) and (order[0].weight >= LIKELY or order[0].cause == "data")
    cause = order[0].cause if is_named else ""
    because = order[0].supports[0].partition(": ")[0].rstrip(".") if cause else "based on the loss alone"
    if is_of_calls and cause == "optimizer":
        yield Remedy(
            "Divide each microbatch's loss by their number before its backward; or lower the learning rate as far, or "
            "clip the gradients, where their sum is meant.",
            "def backward(loss, microbatches):  # of each\n    (loss / microbatches).backward()", because,
        )  # fmt: skip
    elif is_of_calls and cause == "backward_arithmetic":
        yield Remedy(
            "Clip the gradients, and make the recurrence longer in small steps, or cut the backward off after some "
            "rounds (truncated backpropagation).",
            clip, because,
        )  # fmt: skip
    elif cause == "backward_arithmetic":
        yield Remedy(
            "Look for a root, norm, logarithm or division of what is nearly 0 in the loss of that step, and add an "
            "epsilon; and go back to a checkpoint from before.",
            "with torch.autograd.set_detect_anomaly(True):\n    pass  # run that step here, and print the gradients",
            because,
        )  # fmt: skip
        yield Remedy("Clip the gradients, so that one step moves the weights by so much at most.", clip, because)
    elif cause == "learning_rate" and rate is not None and rate.high < 0:
        yield Remedy(
            "Look at the schedule: the learning rate must not fall below 0. Clamp it, and go back to a checkpoint from "
            f"before step {rate.step}.",
            "for group in optimizer.param_groups:\n    group['lr'] = max(group['lr'], 0.0)", because,
        )  # fmt: skip
    elif cause == "learning_rate" and rate is not None and rate.group is not None:
        yield Remedy(
            f"Set the learning rate of parameter group {rate.group} back to {rate.low:.3g}, or raise it in small "
            "steps.",
            "groups = optimizer.param_groups  # of several optimizers those of the first come first\n"
            f"groups[{rate.group}]['lr'] *= {rate.low / rate.high:.3g}", because,
        )  # fmt: skip
    elif cause == "learning_rate" and rate is not None:
        yield Remedy(
            f"Set the learning rate back to {rate.low:.3g}, or raise it in small steps.",
            f"for group in optimizer.param_groups:\n    group['lr'] *= {rate.low / rate.high:.3g}", because,
        )  # fmt: skip
    elif cause == "learning_rate" and thawed is not None:
        yield Remedy(
            f"Give the parameters that are trained since step {thawed.step} a parameter group with a smaller learning "
            "rate of its own, such as a tenth to a hundredth, or warm it up from there; and go back to a checkpoint "
            "from "
            "before.",
            f"thawed = dict(model.named_parameters())[{thawed.fqn!r}]\n"
            "for group in optimizer.param_groups:\n"
            "    if any(each is thawed for each in group['params']):\n"
            "        group['lr'] *= 0.01",
            because,
        )  # fmt: skip
    elif cause == "learning_rate":
        code = "for group in optimizer.param_groups:\n    group['lr'] *= 0.1"
        yield Remedy("Lower the learning rate.", code, because)
    elif cause == "data":
        text = f"Look at the batch of step {step}, its targets too, and leave out what is wrong with it."
        if is_lasting:
            text = f"Look at the batches from step {step} on, their targets too: it has stayed since."
        yield Remedy(
            text,
            "def name_rows(ids, losses):  # call it in the loop: findings then name the rows\n"
            "    rangewatch.batch(ids=ids, losses=losses)",
            because,
        )  # fmt: skip
        if is_of_all_since:
            yield Remedy(
                f"Look at what the loop does at step {step}: a mask that is made another way (turned around: True is "
                "what nn.MultiheadAttention leaves out and scaled_dot_product_attention reads), a limit on the "
                "weights of rows that is gone, a term of the loss that is raised or switched on. Data that become "
                "harder are no fault where that is meant.",
                "", because,
            )  # fmt: skip
            return
        if order[0].weight < LIKELY:
            yield Remedy(
                f"Go back to a checkpoint from before step {step}, and see whether it comes again with other batches.",
                "", because,
            )  # fmt: skip
        yield Remedy("Clip the gradients, so that one batch moves the weights by so much at most.", clip, because)
    elif cause == "mask":
        yield Remedy(
            f"Look at the mask from step {step} on. Of booleans True is what scaled_dot_product_attention reads, and "
            "what nn.MultiheadAttention and Transformer layers leave out. One that is added must be -inf at each place "
            "that is padding or lies ahead, and 0 elsewhere: ones and zeros, as tokenizers give them, mask nothing.",
            "mask = torch.zeros(4, 8).masked_fill(torch.arange(8) >= 5, float('-inf'))  # places from 5 on are padding",
            because,
        )
    elif cause == "no_gradient":
        yield Remedy(
            "Compute the loss in float32, its sums above all, and divide only then; and look for a clamp that all "
            f"values are beyond since step {step}.",
            "prediction, target = torch.rand(8), torch.rand(8)  # of the loop\n"
            "overlap = (prediction.float() * target.float()).sum()  # and not .half()",
            because,
        )
    elif cause == "regularization":
        where = "the weights" if place is None or place.kind == "grad" else f"the output of {place.fqn or 'the model'}"
        yield Remedy(
            f"Look at the term of the loss that is computed from {where}, and at what was set at step {step}: its "
            "weight, or a sum in place of a mean. If it is to be raised, raise it in small steps: what it is a penalty "
            "on is driven to 0 else, and units, or gates, that it drives there give no gradient any more (dead ReLU, "
            "saturated sigmoid).",
            "", because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}, with the term as it was.", "", because)
    elif cause == "forward_arithmetic":
        yield Remedy(
            f"Look at what multiplied the loss at step {step}: the weight of a term or of rows, a sum in place of a "
            "mean, a division (by microbatches, by targets that count) that was left out or was by nearly 0.",
            "", because,
        )  # fmt: skip
        yield Remedy("Clip the gradients, so that one step moves the weights by so much at most.", clip, because)
    elif cause == "clip":
        yield Remedy(
            f"Clip the gradients in each step, as before step {step}, or lower the learning rate where the clip is "
            "meant to end: all of a gradient is in the update without it.",
            clip, because,
        )  # fmt: skip
    elif cause == "optimizer" and are_written:
        yield Remedy(
            "Save and load the whole state of what writes to the weights besides the optimizer (Lookahead's slow "
            "weights, an average): build it from the weights after the checkpoint is loaded, or restore it with it.",
            "checkpoint = {'model': model.state_dict(), 'optimizer': optimizer.state_dict()}\n"
            "# and the copies that are written back, under a name of their own",
            because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}.", "", because)
    elif cause == "optimizer":
        yield Remedy(
            "Look at the optimizer's state, and at what loaded or set it: whether it is whole (second moments and the "
            "count of steps too), of this model, of these parameters in this order, and of gradients without a loss "
            "scale; its groups bring their learning rate, momentum and maximize along. Else begin with a new optimizer "
            "and a warm-up.",
            "for state in optimizer.state.values():\n"
            "    print({name: float(each.abs().max()) for name, each in state.items() if torch.is_tensor(each)})",
            because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}.", "", because)
    elif cause == "weight" and are_written:
        yield Remedy(
            f"See what wrote to the weights right before step {step}: an average's weights (EMA) that were copied into "
            "the model for an evaluation and not restored, a checkpoint that was loaded, or a reset. Restore them, or "
            "evaluate a copy of the model.",
            "import copy\n"
            "evaluated = copy.deepcopy(model)  # give this one the average's weights: the model keeps its own",
            because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}.", "", because)
    elif cause == "weight":
        where = "it" if place is None else place.fqn
        yield Remedy(
            f"See what wrote to the weights or the bias of {where} right before step {step}: code that sets them, a "
            "group of the optimizer with settings of its own, a checkpoint that was loaded, or a bit that flipped.",
            "", because,
        )  # fmt: skip
        yield Remedy(f"Go back to a checkpoint from before step {step}.", "", because)
    else:
        yield Remedy(
            f"Go back to a checkpoint from before step {step}, and see whether it comes again with other batches.",
            "",
            because,
        )
        yield Remedy("Clip the gradients, so that one batch moves the weights by so much at most.", clip, because)
        yield Remedy(
            "Lower the learning rate, if it jumps again.",
            "for group in optimizer.param_groups:\n    group['lr'] *= 0.5",
            because,
        )
