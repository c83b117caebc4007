"""Early warning: a layer's gradients have become far smaller than they were, while the others' have not.

Gradients that fell at some time of the run, quickly, and have been low ever since. Read from the pyramid's columns.

A column of 8 steps, 64, 512 and so on holds the largest magnitude of its steps. The levels are looked at one after the
other until one covers the run: how long ago it was does not matter, and a fall is quick within one column of its level.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, SERIES_PART, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, WINDOW, Evidence
from rangewatch_server.rules.gradients.vanishing_depth import through_depth
from rangewatch_server.rules.loss.series import has_converged, is_not_zero
from rangewatch_server.rules.phrases import listed, module_code, place, the
from rangewatch_server.rules.recent import FEW_RANKS, Array, Recent, odd_rank, only_rank, recent, tensors_of, unscaled
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

COLUMNS = 512
"""Of each level, the last ones: 4,096 steps of the finest."""

FEWEST, BEFORE = 4, 8
"""Columns before a fall, and the one it is in, whose median shows how high it was: at least, and at most."""

MOST = 16
"""Gradients that are examined closely: those that are the furthest below what they once were."""

CHANCE = 1e-6
"""That as many low columns follow each other by chance, going by their share before: some gradients are often 0."""

ZERO_BITS = -200.0
"""What an all-zero gradient counts as: below every number of float32."""


class Fall(msgspec.Struct, frozen=True):
    """Of the gradient at `place`: `bits` beyond what the others fell by, in or behind the column that begins at
    `step`."""

    place: int
    bits: float
    step: int


def falls(evidence: Evidence, tensors: Array, now: Array, least: float) -> Iterator[Fall]:
    """Those of `tensors` (t,) that fell by `least` bits or more. `now`: (t,) bits that none of their last is above."""
    reported: set[int] = set()
    for pieces in _passes(evidence):
        read = [_heights(evidence, tensors, *piece) for piece in pieces]
        steps, bits = (np.concatenate(each, axis=-1) for each in zip(*read, strict=True))
        for column in _candidates(bits, now, least):
            if column not in reported and (fall := _fall_at(bits, now, column, least)) is not None:
                reported.add(column)
                yield Fall(column, fall[0], max(evidence.start, int(steps[fall[1]])))


def _passes(evidence: Evidence) -> Iterator[list[tuple[int, int, int]]]:
    """Columns to look at together, as (level, start, stop): the last ones of each level, from the finest on; and of all
    of the run, its beginning in finer columns than the rest: a fall at step 100 of a million is quick in those only."""
    level, stop = 0, evidence.whole_stop
    while True:
        level += 1
        size = FANOUT**level
        start = (-(-stop // size) - COLUMNS) * size
        if start <= evidence.start:
            break
        yield [(level, start, stop)]
    thinned = evidence.run.thinned(list(evidence.ranks), evidence.start, stop)
    finest = 1 if thinned is None else min(level, int(np.log2(thinned.per)) // int(np.log2(FANOUT)))
    levels, fine = range(finest, level + 1), COLUMNS // FANOUT
    ends = [(evidence.start // FANOUT**each + fine) * FANOUT**each for each in levels[1:]]
    pieces = zip(levels, [evidence.start, *ends], [*ends, stop], strict=True)
    yield [(each, low, min(high, stop)) for each, low, high in pieces if low < stop]


def _heights(evidence: Evidence, tensors: Array, level: int, start: int, stop: int) -> tuple[Array, Array]:
    """(n,) first steps, and (t, n) log2 of the largest magnitude in each column, the loss scale taken out; NaN: not
    observed.

    Of a scale that changed within a column the largest counts: the column is then lower than it was, not higher.
    """
    block = evidence.run.slice(RANGES, list(evidence.ranks), level, start, stop, ("call_count", "amax"), tensors)
    calls, amax = (np.asarray(block.columns[name], np.float64) for name in ("call_count", "amax"))
    steps = (block.first + np.arange(calls.shape[1])) * FANOUT**level
    with np.errstate(divide="ignore"):
        bits = np.where(calls > 0, np.where(amax > 0, np.log2(amax), ZERO_BITS), np.nan)
    names = evidence.run.names()
    if not evidence.is_loss_scaled or "loss_scale" not in names.series:
        return steps, bits
    row = np.array([names.series["loss_scale"]])
    scale = evidence.run.slice(SERIES_PART, list(evidence.ranks), level, start, stop, ("max",), row).columns["max"][0]
    shift = np.log2(scale, out=np.full(len(scale), np.nan), where=np.isfinite(scale) & (scale > 0))
    return steps, np.where(bits == ZERO_BITS, bits, bits - shift)


def _candidates(bits: Array, now: Array, least: float) -> list[int]:
    """Places of gradients that are so far below a column of theirs."""
    highest = np.where(np.isfinite(bits), bits, -np.inf).max(axis=1, initial=-np.inf)
    could = np.flatnonzero(np.isfinite(now) & (highest - now >= least))
    return could[np.argsort(now[could] - highest[could], kind="stable")][:MOST].tolist()


def _fall_at(bits: Array, now: Array, place: int, least: float) -> tuple[float, int] | None:
    """By how much it fell where it fell the most, less the median of what all fell by; and that column. None: it has
    not, or it may come back."""
    there = np.flatnonzero(np.isfinite(bits[place]))
    row = bits[place][there]
    if len(row) < FEWEST:
        return None
    smooth = _without_spikes(row)
    windows = np.lib.stride_tricks.sliding_window_view(np.r_[np.full(BEFORE - 1, np.nan), smooth], BEFORE)
    heights = np.minimum(smooth, _medians(windows))
    drops = heights - np.maximum(np.append(np.maximum.accumulate(smooth[:0:-1])[::-1], -np.inf), now[place])
    at = int(drops[FEWEST - 1 :].argmax()) + FEWEST - 1
    column = int(there[at])
    others = _medians(bits[:, max(0, column - BEFORE + 1) : column + 1]) - now
    fell = float(drops[at] - max(0.0, float(np.median(others[np.isfinite(others)]))))
    share_low = (np.count_nonzero(row[:at] <= heights[at] - least) + 0.5) / (at + 1)
    return (fell, column) if fell >= least and share_low ** (len(row) - 1 - at) <= CHANCE else None


def _without_spikes(row: Array) -> Array:
    """Each the median of itself and its two neighbours: a spike of one column goes, an edge stays where it is."""
    wide = np.pad(row, 1, mode="edge")
    return np.median(np.stack([wide[:-2], wide[1:-1], wide[2:]]), axis=0)


def _medians(values: Array) -> Array:
    """(t,) medians of those of (t, n) that are not NaN; NaN where there is none."""
    count = np.isfinite(values).sum(axis=1)
    ordered, row, last = np.sort(values, axis=1), np.arange(len(values)), values.shape[1] - 1
    lower, upper = ordered[row, np.maximum(count - 1, 0) // 2], ordered[row, np.minimum(count // 2, last)]
    return (lower + upper) / 2


LASTING = 32
"""Last points that must all be low."""

HISTORY = 32
"""Points before them that show what is usual."""

FEWEST_OTHERS = 3
"""Gradients of other parameters to compare with."""

ALIKE_BITS = 4.0
"""Of those that fell by as much but for this, the first is named: by which one the most changes from step to step."""

MEASURED = 3
"""Times that the full set must have been measured for the absolute limit."""


class Vanished(msgspec.Struct, frozen=True):
    """A gradient that has: `fall` in bits, below what `against` says; `since`: about the step, where it is known."""

    tensor: int
    fall: float
    against: str
    since: int | None = None


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the gradient that fell the most."""
    tensors = tensors_of(evidence, "grad")
    points = recent(evidence)
    if not len(tensors) or not points.bits.size:
        return
    bits = np.where(points.zero[tensors], ZERO_BITS, unscaled(evidence, points)[tensors])
    if (deep := next(through_depth(evidence, bits, tensors), None)) is not None:
        yield deep
        return
    vanished = [
        *_below_history(bits, limits["history_bits"], tensors),
        *_since_long(evidence, bits, limits["history_bits"], tensors),
        *_below_others(evidence, bits, limits["others_bits"], tensors),
        *_below_limit(evidence, limits["least_rms"], tensors),
    ]
    if vanished:
        yield _finding(evidence, *_first(vanished), points)
    else:
        yield from _all_zero(evidence, tensors, points)


ZERO_LASTING = 64
"""Last points at which most parameters' gradients are exactly 0, since the first step perhaps."""

ZERO_SHARE, FEWEST_ZERO = 0.5, 3
"""Part of the parameters, and how many of them at least: single ones may be unused, as experts are."""


def _all_zero(evidence: Evidence, tensors: Array, points: Recent) -> Iterator[Finding]:
    """Most parameters have had a gradient of exactly 0 for long, and others have not; or all have, and had another one
    before."""
    seen = points.observed[tensors]
    long_seen = seen.sum(axis=1) >= ZERO_LASTING
    zero = np.array(
        [bool(points.zero[tensor][at][-ZERO_LASTING:].all()) for tensor, at in zip(tensors, seen, strict=True)], bool
    )
    dead, among = tensors[zero & long_seen], int(long_seen.sum())
    if len(dead) < max(FEWEST_ZERO, ZERO_SHARE * among):
        return
    if len(dead) == among:
        is_lost = _were_alive(evidence, dead) and is_not_zero(evidence, evidence.whole_stop - LASTING)
    else:
        is_lost = not has_converged(evidence)
    if is_lost:
        # Gradients are made from the loss on: the first of them in call order is nearest to where they end.
        order = dead[np.argsort(evidence.tensors.position[dead], kind="stable")]
        yield _zero_finding(evidence, order, among, points)


def _were_alive(evidence: Evidence, dead: Array) -> bool:
    """Whether there were gradients for long before: of such that died in the first updates `no_gradient` says so."""
    since = [_zero_since(evidence, int(each)) for each in dead]
    return max((each for each in since if each is not None), default=0) >= evidence.start + HISTORY


def _zero_finding(evidence: Evidence, dead: Array, among: int, points: Recent) -> Finding:
    entries = [evidence.tensors.entries[int(each)] for each in dead]
    step, rank = int(points.steps[-1]), only_rank(evidence)
    module = entries[0].fqn.rpartition(".")[0]
    zeros = int(points.zero[int(dead[0])].sum())
    since = _zero_since(evidence, int(dead[0]))
    known = _cause_of_zeros(evidence, int(dead[0]), evidence.start if since is None else since)
    return Finding(
        severity="info" if known is not None and known.is_meant else "",
        rank=rank, step=step, tensor=entries[0].fqn, kind=entries[0].kind, subject="all zero",
        summary=f"{place(step, rank)}: the gradients of {f'{len(dead)} of' if len(dead) < among else 'all'} {among} "
        "parameters are zero in every element; "
        f"counted from the loss, {the(entries[0])} is the first of them.",
        evidence=(
            f"That one has been zero in {zeros} of the last {int(points.observed[int(dead[0])].sum())} steps.",
            f"The others: {listed(entries[1:])}.",
            *((_DEAD,) if known is None else known.sentences),
        ),
        remedy=(
            Remedy(
                f"Look at what {module or 'the model'} is given: a dead activation right before it, a detach(), or a "
                "multiplication by 0.",
                _printed_zeros(module),
                "what lies nearer to the loss has a gradient, and what lies behind it has none",
            )
            if known is None
            else known.remedy,
        ),
        facts={
            "zero": len(dead), "parameters": among, "where": module,
            "cause_class": "dead_units" if known is None else known.cause,
        },
    )  # fmt: skip


def _printed_zeros(module: str) -> str:
    """Code that prints which part of what a module is given is 0."""
    return (
        f"{module_code(module)}.register_forward_pre_hook(\n"
        "    lambda module, args: print([float((each == 0).float().mean()) for each in args "
        "if torch.is_tensor(each)]))"
    )


_DEAD = (
    "A weight has no gradient where all that its module is given is 0, as behind a ReLU whose inputs are all negative "
    "(called as a function it is not seen), or where the graph is cut."
)


def _first(vanished: list[Vanished]) -> tuple[Vanished, list[Vanished]]:
    """The one that is named, and the others: one of each tensor."""
    most: dict[int, Vanished] = {}
    for each in sorted(vanished, key=lambda each: (each.since is not None, each.fall)):
        most[each.tensor] = each
    largest = max(each.fall for each in most.values())
    order = sorted(most.values(), key=lambda each: (each.fall < largest - ALIKE_BITS, each.tensor))
    return order[0], order[1:]


def _below_history(bits: Array, least: float, tensors: Array) -> Iterable[Vanished]:
    """By how much each fell below its own history, less what all fell by: in a training that converges all do."""
    if bits.shape[1] < HISTORY + LASTING:
        return
    falls = np.array([_fall(row) for row in bits])
    known = np.isfinite(falls)
    if known.sum() <= FEWEST_OTHERS:
        return
    usual = max(0.0, float(np.median(falls[known])))
    for at in np.flatnonzero(known & (np.nan_to_num(falls) - usual >= least)):
        yield Vanished(int(tensors[at]), float(falls[at] - usual), "its own history")


def _fall(row: Array) -> float:
    """Bits from the median of the history down to the largest of the last points; NaN: not known."""
    there = row[np.isfinite(row)]
    if len(there) < HISTORY + LASTING:
        return np.nan
    return float(np.median(there[:-LASTING]) - there[-LASTING:].max())


def _since_long(evidence: Evidence, bits: Array, least: float, tensors: Array) -> Iterable[Vanished]:
    """Those that fell so long ago that what was before is no history any more, or not most of it."""
    if bits.shape[1] < HISTORY + LASTING or len(tensors) <= FEWEST_OTHERS:
        return
    known = np.isfinite(bits).sum(axis=1) >= LASTING
    now = np.full(len(bits), np.nan)
    for at in np.flatnonzero(known):
        now[at] = bits[at][np.isfinite(bits[at])][-LASTING:].max()
    for fall in falls(evidence, tensors, now, least):
        yield Vanished(int(tensors[fall.place]), fall.bits, "its own history", fall.step)


def _below_others(evidence: Evidence, bits: Array, least: float, tensors: Array) -> Iterable[Vanished]:
    """Weights (not biases: those before a normalisation have none) far below the other weights, in the whole window."""
    is_weight = np.array([len(evidence.tensors.entries[int(each)].shape) > 1 for each in tensors], bool)
    lasting = np.isfinite(bits).sum(axis=1) >= 2 * LASTING
    among = np.flatnonzero(is_weight & lasting)
    if len(among) <= FEWEST_OTHERS:
        return
    highest = np.array([np.nanmax(row) for row in bits[among]])
    usual = float(np.median([np.median(row[np.isfinite(row)]) for row in bits[among]]))
    for at in np.flatnonzero((usual - highest >= least) & (highest > ZERO_BITS)):
        yield Vanished(int(tensors[among[at]]), float(usual - highest[at]), "the other weights' gradients")


def _below_limit(evidence: Evidence, least_rms: float, tensors: Array) -> Iterable[Vanished]:
    """An absolute limit, for presets: off by default."""
    if least_rms <= 0:
        return
    # Ranks are not kept merged of squares: a run of many has its first looked at.
    rank = None if len(evidence.ranks) <= FEW_RANKS else evidence.ranks[0]
    window = evidence.window(("full_numel", "sum_sq"), WINDOW, rank=rank)
    if "sum_sq" not in window.columns:
        return
    scale = evidence.series("loss_scale", window.start, window.stop) if evidence.is_loss_scaled else 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        rms = np.sqrt(window.columns["sum_sq"][tensors] / window.columns["full_numel"][tensors]) / scale
    for at, row in enumerate(rms):
        last = row[np.isfinite(row)][-MEASURED:]
        if len(last) == MEASURED and last.max() < least_rms:
            yield Vanished(
                int(tensors[at]), float(np.log2(least_rms / max(last.max(), 1e-60))), "the limit that was set"
            )


def _finding(evidence: Evidence, first: Vanished, others: list[Vanished], points: Recent) -> Finding:
    entry = evidence.tensors.entries[first.tensor]
    step = int(points.steps[np.flatnonzero(points.observed[first.tensor])[-1]])
    rank, ranks = odd_rank(evidence, first.tensor, step, -1)
    is_zero = bool(points.zero[first.tensor][points.observed[first.tensor]][-LASTING:].all())
    since = _zero_since(evidence, first.tensor) if is_zero else first.since
    step = since if is_zero and since is not None else step
    where = place(step, rank)
    known = _cause_of_zeros(evidence, first.tensor, since) if is_zero and since is not None else None
    text = (
        "has been zero in every element since"
        if is_zero
        else f"has vanished: it is {2.0**first.fall:.2g} times below {first.against}"
    )
    return Finding(
        severity="info" if known is not None and known.is_meant else "",
        rank=rank, step=step, tensor=entry.fqn, kind=entry.kind, subject="vanishing",
        summary=f"{where}: {the(entry)} {text}.",
        evidence=(*_evidence(evidence, first, others, points, ranks), *(() if known is None else known.sentences)),
        remedy=tuple(_remedies()) if known is None else (known.remedy,),
        facts={
            "fall_bits": first.fall, "against": first.against, "all_zero": is_zero,
            **({} if known is None else {"cause_class": known.cause, "where": entry.fqn.rpartition(".")[0]}),
            **({} if since is None else {"since_step": since}),
        },
    )  # fmt: skip


class CauseOfZeros(msgspec.Struct, frozen=True):
    """Why a gradient is 0 since a step. `is_meant`: it may well be."""

    cause: str
    sentences: tuple[str, ...]
    remedy: Remedy
    is_meant: bool = False


def _cause_of_zeros(evidence: Evidence, tensor: int, since: int) -> CauseOfZeros | None:
    """None where nothing that was recorded says it."""
    if _is_term(evidence, tensor, since):
        return CauseOfZeros("weight", _TERM, _LEAVE_OUT, is_meant=True)
    if cut := _cut(evidence, tensor, since):
        return CauseOfZeros("backward_arithmetic", (_CUT.format(cut), _TEST), _straight_through(cut))
    module, _, name = evidence.tensors.entries[tensor].fqn.rpartition(".")
    stop = min(since + LASTING, evidence.whole_stop)
    if name == "weight" and since < stop and module in _given_zeros(evidence, since, stop):
        return CauseOfZeros("dead_units", (_DEAD_BEFORE.format(module or "the model"),), _alive(module))
    return None


_DEAD_BEFORE = (
    "Cause (likely): dead units right before it. The gradient of the bias of {} is not 0 and that of its weight is: "
    "all that it is given is 0, as of a ReLU, called as a function or a module, whose inputs are all negative. Against "
    "that: rows that are all 0, or a multiplication by 0, look the same."
)


def _alive(module: str) -> Remedy:
    return Remedy(
        f"Look at what comes right before {module or 'the model'}: a bias or weights that fell so far that its ReLU "
        "gives 0 for every row, as by one large update or by code that writes to them. Units that are dead stay so: go "
        "back to a checkpoint from before, or initialise them anew.",
        _printed_zeros(module),
        "its bias gets a gradient, and its weight none",
    )


_TERM = (
    "Cause (likely): what it leads to no longer counts in the loss: its term is multiplied by 0, as by a weight that "
    "was annealed or switched off, or not yet on. What its module gives is not 0, and what lies before it in the "
    "forward gets gradients by another way. Where that is meant, nothing is wrong.",
    "What would decide: print the weight of each term of the loss.",
)

_LEAVE_OUT = Remedy(
    "Look at the weights of the terms of the loss. A term that is meant to be off may be left out of the forward, "
    "which saves its time; one that is not needs its weight back.",
    "",
    "what lies before it in the forward gets gradients, and it gets none",
)


def _is_term(evidence: Evidence, tensor: int, since: int) -> bool:
    """Whether a whole branch is without gradients, whose outputs are as large as before or those of no dead unit."""
    gradients, entries = tensors_of(evidence, "grad"), evidence.tensors.entries
    stop, position = min(since + LASTING, evidence.whole_stop), evidence.tensors.position
    module = entries[tensor].fqn.rpartition(".")[0]
    outputs = tensors_of(evidence, "output")
    own = [at for at, each in enumerate(outputs.tolist()) if entries[each].fqn == module]
    if not own or since >= stop:
        return False
    chosen = np.concatenate([gradients, outputs])
    low = max(evidence.start, since - LASTING)
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, ("call_count", "amax"), chosen)
    called = np.asarray(block.columns["call_count"]) > 0
    amax = np.where(called, np.asarray(block.columns["amax"], np.float64), 0.0)
    after, had = amax[:, since - low :].max(axis=1), called[:, since - low :].any(axis=1)
    zero = (after == 0) & had
    of_gradients, of_outputs = slice(0, len(gradients)), slice(len(gradients), None)
    if zero[of_outputs].any() or not after[of_outputs][own[0]] > 0 or _given_zeros(evidence, since, stop):
        return False
    before = amax[:, : since - low].max(axis=1, initial=0.0)[of_outputs][own[0]]
    if before > 0 and abs(np.log2(after[of_outputs][own[0]] / before)) > USUAL_BITS:
        return False
    # Gradients are made from the loss on: what lies before it in the forward comes after it.
    first = position[gradients[zero[of_gradients]]].min(initial=position[tensor])
    is_other = position[gradients] > first
    return bool((is_other & (after[of_gradients] > 0)).any())


USUAL_BITS = 4.0
"""Bits within which the last gradient before the zeros, and what its module gives, must be of what was usual."""

SATURATES = 100.0
"""Magnitude of what a module gives from which on a tanh, a sigmoid or a softmax behind it, which may be a function, has
no slope itself."""

SATURATING = frozenset({"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"})
"""Modules of torch whose own gates may be what has no slope any more, whatever they give."""

_CUT = (
    "Cause (likely): an operation without a slope. {} A rounding, a sign, a comparison, a clamp or a factor of 0 lies "
    "between it and the loss since then, or it is detached there and zero_grad(set_to_none=False) leaves zeros."
)
_TEST = "What would decide: print what was changed in the forward, or is computed otherwise, from that step on."


def _cut(evidence: Evidence, tensor: int, since: int) -> str:
    """What says that its slope was lost from one step to the next while what its module gives is as ever: no unit died
    and none saturated. "": it does not say so."""
    entries, low = evidence.tensors.entries, max(evidence.start, since - HISTORY)
    outputs, stop = tensors_of(evidence, "output"), min(since + MEASURED, evidence.whole_stop)
    module = entries[tensor].fqn.rpartition(".")[0]
    own = [int(each) for each in outputs if entries[int(each)].fqn == module]
    if not own or since - low < FEWEST or entries[own[0]].module in SATURATING:
        return ""
    chosen = np.array([tensor, own[0], *map(int, outputs)])
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, ("call_count", "amax"), chosen)
    amax = np.where(block.columns["call_count"] > 0, block.columns["amax"], np.nan)
    before, after = amax[:, : since - low], amax[:, since - low :]
    if (after[2:] == 0).any() or not before[0, -1] > 0 or not (after[1] > 0).all():
        return ""
    usual = np.nanmedian(before[:2], axis=1)
    if _given_zeros(evidence, since, stop) or np.nanmedian(after[1]) >= SATURATES:
        return ""
    if before[0, -1] < usual[0] * 2.0**-USUAL_BITS or abs(np.log2(np.nanmedian(after[1]) / usual[1])) > USUAL_BITS:
        return ""
    return (
        f"Its largest magnitude was {before[0, -1]:.3g} at step {since - 1} and 0 from step {since} on, while what "
        f"{module or 'the model'} gives is as large as before ({np.nanmedian(after[1]):.3g}) and no output is 0."
    )


def _given_zeros(evidence: Evidence, since: int, stop: int) -> frozenset[str]:
    """The modules that have a gradient of 0 for their weight and another for their bias: what they are given is 0, as
    behind units that died in a function."""
    gradients, entries = tensors_of(evidence, "grad"), evidence.tensors.entries
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, since, stop, ("call_count", "amax"), gradients)
    called = np.max(block.columns["call_count"], axis=1) > 0
    heights: dict[str, list[float]] = {}
    for tensor, amax, was_called in zip(gradients.tolist(), block.columns["amax"].max(axis=1), called, strict=True):
        if was_called:
            heights.setdefault(entries[tensor].fqn.rpartition(".")[0], []).append(float(amax))
    return frozenset(module for module, each in heights.items() if min(each) == 0 < max(each))


def _straight_through(because: str) -> Remedy:
    return Remedy(
        "Look at what is computed otherwise from that step on, between that module and the loss. Where a rounding or "
        "another step is meant, let its gradient through (a straight-through estimator), or train on noise in its "
        "place.",
        "def rounded(value):  # rounds in the forward, and is the identity in the backward\n"
        "    return value + (value.round() - value).detach()",
        f"{because[0].lower()}{because[1:].rstrip('.')}",
    )


def _zero_since(evidence: Evidence, tensor: int) -> int | None:
    """The step after the last at which some element of it was not 0; None where there is no such step.

    Searched from coarse columns down, from the end: of thinned runs it is as exact as what is left of them.
    """
    rows, low, high = np.array([tensor]), evidence.start, evidence.whole_stop
    level = level_for(high - low, SCAN_COLUMNS)
    while low < high:
        deadline.check()
        block = evidence.run.slice(RANGES, list(evidence.ranks), level, low, high, ("amax",), rows)
        other = np.flatnonzero(np.asarray(block.columns["amax"], np.float64)[0] > 0)
        if not len(other):
            return None
        at, size = block.first + int(other[-1]), FANOUT**level
        if level == 0:
            return at + 1
        low, high, level = max(low, at * size), min(high, (at + 1) * size), level - 1
    return None


def _evidence(evidence: Evidence, first: Vanished, others: list[Vanished], points: Recent, ranks: str) -> Iterator[str]:
    row = unscaled(evidence, points)[first.tensor]
    there = row[np.isfinite(row)]
    count = int(points.observed[first.tensor].sum())
    if len(there):
        yield f"Its largest magnitude was {2.0 ** there[-1]:.3g} when it last was not 0, of {count} steps looked at."
    if first.since is not None:
        yield f"It fell soon after step {first.since}."
    zeros = int(points.zero[first.tensor].sum())
    if zeros:
        yield f"In {zeros} of these steps all of its elements were 0."
    if ranks:
        yield ranks
    if others:
        yield f"{len(others)} more: {listed([evidence.tensors.entries[each.tensor] for each in others])}."


def _remedies() -> Iterator[Remedy]:
    because = "based on the size of the gradients alone; look at the modules between this one and the loss"
    yield Remedy(
        "See whether an activation behind it is dead or saturated, or a tensor is detached from the graph.", "", because
    )
    yield Remedy(
        "Residual connections, normalisation, and an initialisation that fits the activation keep gradients alike.",
        "for module in model.modules():\n"
        "    if isinstance(module, torch.nn.Linear):\n"
        "        torch.nn.init.kaiming_normal_(module.weight, nonlinearity='relu')",
        because,
    )


RULE = Rule(
    name="vanishing_gradient",
    title="Gradients vanish",
    severity="warning",
    explanation="The gradients of a parameter have become far smaller than they were, or than the other layers' are, "
    "and stay so: that layer does not learn any more. In a training that converges all fall alike, which is not "
    "reported.",
    check=check,
    thresholds=(
        Threshold("history_bits", 10.0, "bits", "How far below its own history, beyond what the others fell by."),
        Threshold("others_bits", 20.0, "bits", "How far below the other weights' gradients, in all of the window."),
        Threshold(
            "least_rms", 0.0, "magnitude", "Root mean square below which one has vanished; 0: any is fine.",
            (("sagemaker", 1e-7),),
        ),
    ),
)  # fmt: skip
