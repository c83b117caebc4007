"""Early warning: an activation that gives nothing but zeros."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.evidence import WINDOW, Evidence
from rangewatch_server.rules.inputs import LARGE_INPUT, largest_input, normalise
from rangewatch_server.rules.phrases import listed, module_path, place, the
from rangewatch_server.rules.recent import COUNTS, Array, Recent, history, last_finite, only_rank, recent, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

RELU_LIKE = re.compile(r"(squared)?relu(6|2|squared|squaredactivation)?|threshold", re.IGNORECASE)
"""Module classes whose zeros have no gradient. Leaky ones have."""

LINEAR = re.compile(
    r"(lazy)?(linear|conv\d?d?|convtranspose\dd|batchnorm\dd|layernorm|rmsnorm|groupnorm)", re.IGNORECASE
)
"""Module classes that never give zeros alone while they learn."""

LASTING = 32
"""Last points at which every element is 0."""

BEFORE = 32
"""Points at which a module that is not ReLU-like gave something else before."""

COLUMNS = 512
"""Of the steps before the last ones: of one tensor, to see since when it is dead."""

MEASURED, LIVELY = 3, 0.9
"""Measurements of the zeros, where some elements are left; two are enough where it had fewer zeros than this share."""


UNITS = 0.9
"""Share of a layer's units that get no gradient from which on they are dead, where it was less."""

ALIVE = 0.7
"""Share below which it must have been at first: of layers that are sparse by nature it always is high."""

REVIVED = 0.05
"""Share by which it never falls: what is dead stays so, and what is merely seldom active comes and goes."""

A_ROW = 0.2
"""Units that give anything but 0, in the mean over rows or places of pictures, below which a layer is dead that was
alive: most rows get nothing through it."""

FEWEST_UNITS = 16

EXPECTED = 4.0
"""How often in a batch the units that are left must be active: by chance those that are seldom so are once."""


class Dead(msgspec.Struct, frozen=True):
    """`share` of the elements that are 0; `since`: the first step known of, or of a group of steps to whose last,
    `latest`, it may have begun; `points` that were examined. `units`: the share of those that get no gradient, where
    that is what is known.
    """

    tensor: int
    share: float
    since: int
    step: int
    points: int
    units: float = 0.0
    latest: int = -1


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first in call order, with the others."""
    tensors = tensors_of(evidence, "output")
    if not len(tensors):
        return
    entries, points = evidence.tensors.entries, recent(evidence)
    is_relu = np.array([bool(RELU_LIKE.fullmatch(entries[int(each)].module)) for each in tensors], bool)
    is_linear = np.array([bool(LINEAR.fullmatch(entries[int(each)].module)) for each in tensors], bool)
    dead = {each.tensor: each for each in _nearly(evidence, tensors[is_relu], limits["least_zeros"])}
    dead |= {each.tensor: each for each in _all_zero(evidence, points, tensors[is_relu], 0)}
    dead |= {each.tensor: each for each in _all_zero(evidence, points, tensors[is_linear], BEFORE)}
    dead |= {each.tensor: each for each in _units(evidence, tensors[is_relu]) if each.tensor not in dead}
    if dead:
        order = evidence.tensors.call_index
        yield _finding(evidence, sorted(dead.values(), key=lambda each: (int(order[each.tensor]), each.tensor)))


def _all_zero(evidence: Evidence, points: Recent, tensors: Array, before: int) -> Iterator[Dead]:
    for tensor in tensors.tolist():
        at = np.flatnonzero(points.observed[tensor])
        zero = points.zero[tensor][at]
        if len(at) < LASTING or not zero[-LASTING:].all():
            continue
        alive = np.flatnonzero(~zero)
        count, last = len(alive), int(points.steps[at[alive[-1] + 1]]) if len(alive) else None
        if last is None or count < before:
            earlier, since = _before(evidence, tensor, int(points.steps[0]))
            count, last = count + earlier, since if last is None else last
        if count >= before:
            since = int(points.steps[at[0]]) if last is None else last
            yield Dead(tensor, 1.0, since, int(points.steps[at[-1]]), len(at))


def _before(evidence: Evidence, tensor: int, stop: int) -> tuple[int, int | None]:
    """In how many of as many steps as are examined, up to the last before `stop` in which it did, it gave something
    else, and the step after that; None where in none."""
    level, start = level_for(max(0, stop - evidence.start), COLUMNS), evidence.start
    while level >= 0 and start < stop:
        first, alive = _alive(evidence, tensor, level, start, stop)
        if not alive.any():
            return 0, None
        size, column = FANOUT**level, first + int(np.flatnonzero(alive)[-1])
        start, stop, level = max(start, column * size), min(stop, (column + 1) * size), level - 1
    if start >= stop:
        return 0, None
    low = max(evidence.start, stop - WINDOW)
    per = evidence.run.steps_a_row(list(evidence.ranks), low, stop)
    return int(_alive(evidence, tensor, 0, low, stop)[1].sum()) * per, stop


def _alive(evidence: Evidence, tensor: int, level: int, start: int, stop: int) -> tuple[int, Array]:
    """The first column, and (n,) whether it gave anything but zeros in each."""
    block = evidence.run.slice(RANGES, list(evidence.ranks), level, start, stop, ("amax",), np.array([tensor]))
    return block.first, np.asarray(block.columns["amax"][0]) > 0


def _nearly(evidence: Evidence, tensors: Array, least: float) -> Iterator[Dead]:
    past = history(evidence, tensors)
    shares = past.share("zero_count")
    for tensor, share in zip(tensors.tolist(), shares, strict=True):
        last = last_finite(share, MEASURED)
        was_lively = len(last) >= 2 and np.nanmin(share) <= LIVELY
        bar = least
        if was_lively and last[-2:].min() < least:
            bar = 1 - A_ROW / _width(evidence.tensors.entries[tensor].shape)
        has_collapsed = was_lively and last[-2:].min() >= bar
        if has_collapsed or (len(last) == MEASURED and last.min() >= least):
            at = np.flatnonzero(np.isfinite(share))
            low = np.flatnonzero(share[at] < bar)
            since = at[low[-1] + 1] if len(low) else at[0]
            yield Dead(
                tensor, float(last[-1]), int(past.starts[since]), int(past.ends[at[-1]]), len(at),
                latest=int(past.ends[since]),
            )  # fmt: skip


def _width(shape: tuple[int, ...]) -> float:
    """Units of a layer, of a matrix of rows or of pictures; Inf where it has few, or it is not known."""
    units = shape[-1] if len(shape) == 2 else shape[1] if len(shape) == 4 else 0
    return units if units >= FEWEST_UNITS else float("inf")


def _units(evidence: Evidence, tensors: Array) -> Iterator[Dead]:
    """Activations of which most units are zero for all of the batch: the rows of the layer before get no gradient.

    That most elements are zero is sparse, and may be meant. Dead is what nothing in a batch of many rows activates.
    """
    for tensor, gradient in _layers_before(evidence, tensors):
        shape = evidence.tensors.entries[gradient].shape
        past = history(evidence, np.array(sorted((tensor, gradient))), LEVEL_COUNTS)
        of_output, of_gradient = (int(each == max(tensor, gradient)) for each in (tensor, gradient))
        zeros, silent = past.share("zero_count")[of_output], past.share("zero_count")[of_gradient]
        calls, numel = (past.columns[name][of_output] for name in ("call_count", "numel"))
        with np.errstate(invalid="ignore", divide="ignore"):
            expected = (1 - zeros) * numel / np.maximum(calls, 1) / shape[0]
        # Where no unit gets a gradient the loss gives none, as without a reward: that says nothing of the units.
        there = np.flatnonzero((silent < 1) & np.isfinite(zeros))
        if len(there) < MEASURED or not silent[there[0]] <= ALIVE or (np.diff(silent[there]) < -REVIVED).any():
            continue
        alive = np.flatnonzero(silent[there] < UNITS)
        since = there[alive[-1] + 1 :] if len(alive) else there
        if len(since) and expected[since].mean() >= EXPECTED * (1 - silent[since]).mean():
            last = int(since[-1])
            yield Dead(
                tensor, float(zeros[last]), int(past.starts[since[0]]), int(past.ends[last]), len(since),
                float(silent[last]), int(past.ends[since[0]]),
            )  # fmt: skip


LEVEL_COUNTS = (*COUNTS, "numel")


def _layers_before(evidence: Evidence, tensors: Array) -> Iterator[tuple[int, int]]:
    """Each with the gradient of the weight of the linear layer right before it, of which a row is a unit."""
    entries, position = evidence.tensors.entries, evidence.tensors.position
    outputs = tensors_of(evidence, "output")
    order = outputs[np.argsort(position[outputs], kind="stable")].tolist()
    weights = {entries[each].fqn: each for each in tensors_of(evidence, "grad").tolist()}
    for tensor in tensors.tolist():
        at = order.index(tensor)
        before = entries[order[at - 1]] if at else None
        gradient = None if before is None else weights.get(f"{before.fqn}.weight")
        if before is None or gradient is None or not LINEAR.fullmatch(before.module):
            continue
        shape = entries[gradient].shape
        if len(shape) > 1 and shape[0] >= FEWEST_UNITS:
            yield tensor, gradient


def _finding(evidence: Evidence, dead: list[Dead]) -> Finding:
    first = dead[0]
    entry = evidence.tensors.entries[first.tensor]
    rank = only_rank(evidence)
    where = place(first.since, rank)
    what = f"is dead: it has {'nothing but zeros' if first.share == 1.0 else f'{first.share:.4%} zeros'}"
    if first.units:
        what = f"has mostly dead units: {first.units:.0%} of them are zero for each row of a batch, and get no gradient"
    latest = max(first.latest, first.since)
    when = f"one after it, up to step {latest}" if latest > first.since > evidence.start else "before"
    whose = "" if len(evidence.ranks) == 1 else " on all ranks"
    more = [evidence.tensors.entries[each.tensor] for each in dead[1:]]
    size = _large_input(evidence, first.since)
    return Finding(
        rank=rank, step=first.since, tensor=entry.fqn, kind=entry.kind, subject="dead",
        summary=f"{where}: {the(entry)} ({entry.module}) {what}.",
        evidence=(
            f"It has been so since step {first.since} or {when}{whose}, in {first.points} measurements.",
            "Zeros of a ReLU pass no gradient back: what lies before it does not learn."
            if RELU_LIKE.fullmatch(entry.module) else "Before, it gave other values.",
            *(
                [f"Before, fewer were. Of its elements {first.share:.1%} are 0: those that are not are in a few units."]
                if first.units else []
            ),
            *([f"{len(more)} more are dead: {listed(more)}."] if more else []),
            *(
                [
                    f"Cause (likely): the data: what the model is given was not normalised: {size:.3g} in root mean "
                    "square. Layers are initialised for about 1: first updates are as many times too large."
                ]
                if size else []
            ),
        ),
        remedy=(
            *((normalise(f"inputs of the first steps are {size:.3g} in root mean square"),) if size else ()),
            *(_unit_remedies if first.units else _remedies)(evidence, entry, first.since),
        ),
        facts={
            "zero_share": first.share, "since_step": first.since, "latest_step": latest, "tensors": len(dead),
            **({"cause_class": "data"} if size else {}),
        },
    )  # fmt: skip


FIRST, EARLY = 32, 64
"""First steps whose inputs say whether they were normalised, and in which units die of the updates by them."""


def _large_input(evidence: Evidence, since: int) -> float:
    """How large inputs are that may have made units die at `since`; 0: they are as usual, or it was later."""
    size = largest_input(evidence, evidence.start, evidence.start + FIRST)
    return size if size >= LARGE_INPUT and since - evidence.start <= EARLY else 0.0


def _remedies(evidence: Evidence, entry: TensorEntry, since: int) -> Iterator[Remedy]:
    if since <= evidence.start:  # no update of this run has made it so
        because = f"it was so at step {since}, the first that was recorded: no update of this run has made it so"
        yield Remedy("Look at what the layer before it begins with: a large negative bias, or a scale that makes all "
                     "of its outputs negative.", "", because)  # fmt: skip
    else:
        because = "based on the share of zeros; a large negative bias or a step that was too large is the usual cause"
        yield Remedy("Lower the learning rate, and look at the bias of the layer before it.", "", because)
    is_module = module_path(evidence.tensors.entries, entry.fqn) == entry.fqn
    if RELU_LIKE.fullmatch(entry.module) and entry.fqn and is_module:
        yield Remedy(
            "Use an activation that passes gradients for negative values.",
            f"model.set_submodule({entry.fqn!r}, torch.nn.LeakyReLU(0.01))", because,
        )  # fmt: skip


def _unit_remedies(evidence: Evidence, entry: TensorEntry, since: int) -> Iterator[Remedy]:
    because = "rows of the weight before it get a gradient of exactly 0, and so nothing brings those units back"
    yield Remedy(
        "Look at what drives them below zero: a penalty on activations (L1) whose coefficient is too large or rises "
        "too "
        "fast, or a bias that fell. Units that are dead stay so: re-initialise their rows and biases.", "", because,
    )  # fmt: skip
    yield from (each for each in _remedies(evidence, entry, since) if each.code)


RULE = Rule(
    name="dead_activation",
    title="Dead activation",
    severity="warning",
    explanation="The output of an activation is zero in every element, or nearly: its units pass nothing on, and no "
    "gradient back, so they stay dead. Or most of its units are, and were not before: zero for each row of a batch, "
    "which the gradient of the layer before shows; that most elements are zero is sparse, and may be meant. Modules "
    "are known by their class; an activation that is called as a function is "
    "not seen.",
    check=check,
    thresholds=(
        Threshold(
            "least_zeros", 0.999, "fraction", "Share of zeros from which a ReLU is dead. Half of them is usual.",
            (("sagemaker", 1.0),),
        ),
    ),
    explains=("vanishing_gradient", "no_gradient"),
)  # fmt: skip
