"""Worth acting on: one batch was far larger than all before it, and what it left behind is not in the loss.

Its mark is that the output of a first module jumps in one step and is back in the next: no update moves a weight so far
and back. A normalisation takes such a batch without a trace in the loss, but for its running statistics.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch.wire.records import TensorEntry
from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.batch_rows import row_sentences
from rangewatch_server.rules.evidence import SCAN_COLUMNS, WINDOW, Evidence
from rangewatch_server.rules.inputs import INPUTS
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.phrases import place, the
from rangewatch_server.rules.recent import Array, odd_rank, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

HISTORY = 16
"""Points before a jump, at least, that show what is usual."""

SPREAD = 3.0
"""How many times the distance from the median to the largest of them a jump must be: some data have long tails."""

LASTING = 8
"""Steps within which it must be low again; what stays is of the weights, or of other data from then on."""

BACK_BITS = 3.0
"""Above the largest before: what is below that is low again."""

FIRST = 4
"""Outputs of a call of a model that may be given the batch: the first ones. A time or a label may be embedded first."""

MOST_TENSORS, MOST_RANKS = 64, 8

MOST_PLACES = 8
"""Columns of the whole run in which single steps are looked at."""

MOST_STEPS = SCAN_COLUMNS * FANOUT
"""Single steps of such a column that are read at once: those of a run of two million steps."""

BLOWN = 8.0
"""How many times its usual value a loss must be that had blown up before: that jump is another's."""

BEFORE, AFTER, SHRUNK = 64, 8, 8.0
"""Steps before such a batch that show how large the first module's output is, those behind it in which it must have
stayed small, and how many times smaller at least. One batch that is 4,096 times as large, the least that is looked at,
makes a deviation over ten thousand batches 40 times as large. No update does that to an output in one step."""

MOMENTUM = 0.1
"""Of a BatchNorm, torch's default: the part of its running statistics that each batch gives."""


class Jump(msgspec.Struct, frozen=True):
    """Of tensor `tensor` at `step`: from `before` at most to `amax`; low again, `after`, at `back`."""

    tensor: int
    step: int
    back: int
    before: float
    amax: float
    after: float


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first such batch, by the first output in call order that shows it."""
    first = _first_outputs(evidence)
    tensors = np.array(sorted(first), np.int64)
    if not len(tensors):
        return
    places = _places(evidence, tensors, limits["least"], evidence.start, evidence.whole_stop)
    for start, stop in itertools.islice(places, MOST_PLACES):
        jumps = sorted(
            _jumps_in(evidence, tensors, start, stop, limits["least"]),
            key=lambda each: (each.step, int(evidence.tensors.position[each.tensor])),
        )
        for jump in jumps:
            if not _is_of_another(evidence, jump.step):
                alike = [each for each in jumps if each.step == jump.step]
                yield _finding(evidence, jump, is_first=first[jump.tensor], alike=len(alike))
                return
    yield from _normalised_at_once(evidence, first, limits["least"])


def _normalised_at_once(evidence: Evidence, first: dict[int, bool], bits: float) -> Iterator[Finding]:
    """Where a module with running statistics is what the batch is given to, no output shows it, and what the model was
    given does: its root mean square is read at each step in host memory."""
    entries = evidence.tensors.entries
    called = min(first, key=lambda each: int(evidence.tensors.position[each]))
    norm = entries[called]
    if not evidence.has_series(INPUTS[0]):
        return
    places = itertools.islice(_places(evidence, None, bits, evidence.start, evidence.whole_stop), MOST_PLACES)
    jumps = (_input_jump(evidence, start, stop, bits) for start, stop in places)
    jump = next((each for each in jumps if each is not None and not _is_of_another(evidence, each.step)), None)
    times = 0.0 if jump is None or _keeps_statistics(norm) else _shrunk_since(evidence, called, jump)
    if jump is None or not (times or _keeps_statistics(norm)):
        return
    rank, factor = only_rank(evidence), jump.amax / jump.before
    between = evidence.largest(INPUTS[0], jump.step, jump.back)  # on a GPU each fourth is read
    lasted = "one step" if jump.back - jump.step == 1 else f"{jump.back - jump.step} steps"
    lasted = lasted if np.isfinite(between).all() else f"{lasted} or less"
    yield Finding(
        rank=rank, step=jump.step, tensor=norm.fqn, kind=norm.kind, subject="outlier",
        summary=f"{place(jump.step, rank)}: the batch was {factor:.3g} times as large as ever before, for {lasted}, "
        f"and the running statistics of {norm.fqn}, which is called first, {'have' if times else 'may have'} it now.",
        evidence=(
            f"The root mean square of what the model was given was {jump.amax:.3g}; before it was {jump.before:.3g} at "
            f"most, and at step {jump.back} it was {jump.after:.3g} again.",
            *_loss_sentences(evidence, jump.step),
            _own_statistics(norm, times) if times else _statistics(norm.fqn, norm.module, factor),
            *row_sentences(evidence.run, evidence.ranks[:MOST_RANKS] if rank is None else (rank,), jump.step),
        ),
        remedy=tuple(_remedies(jump, (norm.fqn, norm.module), is_own=times > 0)),
        facts={
            "factor": factor, "amax": jump.amax, "before": jump.before, "back_step": jump.back,
            "running_statistics": norm.fqn, "cause_class": "data",
        },
    )  # fmt: skip


def _shrunk_since(evidence: Evidence, tensor: int, jump: Jump) -> float:
    """How many times smaller an output is in each of the steps behind the batch than in any before it, of inputs that
    are as they were; 0.0: not by as much, or not known."""
    low = max(evidence.start, jump.step - BEFORE)
    names = ("call_count", "amax", "nan_count", "inf_count")
    stop = min(evidence.whole_stop, jump.back + AFTER)
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, names, np.array([tensor]))
    calls, amax, nans, infs = (np.asarray(block.columns[name][0], np.float64) for name in names)
    good, steps = (calls > 0) & (nans + infs == 0), np.arange(low, stop)
    before, since = amax[good & (steps < jump.step)], amax[good & (steps >= jump.back)]
    if len(before) < HISTORY or len(since) < AFTER or not 0 < since.max() <= before.min() / SHRUNK:
        return 0.0
    return float(np.median(before) / np.median(since))


def _input_jump(evidence: Evidence, start: int, stop: int, bits: float) -> Jump | None:
    """The first of what the model is given in the steps [start, stop), judged by the `WINDOW` before them."""
    low, end = max(evidence.start, start - WINDOW), min(evidence.whole_stop, stop + LASTING)
    values = evidence.largest(INPUTS[0], low, end)
    there = np.flatnonzero(np.isfinite(values) & (values > 0))
    jump = _jump(-1, low + there, np.log2(values[there]), bits, start)
    return jump if jump is not None and jump.step < stop else None


def _keeps_statistics(entry: TensorEntry) -> bool:
    return "BatchNorm" in entry.module


def _first_outputs(evidence: Evidence) -> dict[int, bool]:
    """The first `FIRST` outputs of each call of a module from outside, and whether it is the very first of them.

    In call order a module stands behind all that it called: what follows it and is not below it is another call.
    """
    entries, position = evidence.tensors.entries, evidence.tensors.position
    outputs = tensors_of(evidence, "output")
    calls: list[list[int]] = []
    outer: str | None = None
    for tensor in outputs[np.argsort(-position[outputs], kind="stable")].tolist():
        fqn = entries[tensor].fqn
        if outer is None or not (outer in ("", fqn) or fqn.startswith(f"{outer}.")):
            outer = fqn
            calls.append([])
        calls[-1].append(tensor)
    chosen = {}
    for call in reversed(calls):
        for number, tensor in enumerate(reversed(call[-FIRST:])):
            chosen[tensor] = number == 0
    return dict(list(chosen.items())[:MOST_TENSORS])


def _places(evidence: Evidence, tensors: Array | None, bits: float, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Parts of the steps [start, stop) in which a tensor may jump, or where None what the model is given, ascending:
    the first column, and those above all before. None is longer than `MOST_STEPS`: a column that is, as of a run whose
    steps begin at 0 and go on at 2**50, is searched like the run."""
    level = level_for(stop - start, SCAN_COLUMNS)
    if level == 0:
        yield start, stop
        return
    deadline.check()
    size = FANOUT**level
    if tensors is None:
        amax = np.fmax(evidence.largest(INPUTS[0], start, stop, level), 0.0)[np.newaxis]
    else:
        block = evidence.run.slice(RANGES, list(evidence.ranks), level, start, stop, ("amax",), tensors)
        amax = np.asarray(block.columns["amax"], np.float64)
    with np.errstate(divide="ignore"):
        height = np.log2(amax)
    usual = np.maximum.accumulate(height[:, :-1], axis=1)
    columns = [0, *(1 + np.flatnonzero((height[:, 1:] >= usual + bits).any(axis=0))).tolist()]
    for column in columns[:MOST_PLACES]:
        at = (start // size + column) * size
        inside = max(start, at), min(stop, at + size)
        if size <= MOST_STEPS:
            yield inside
        else:
            yield from _places(evidence, tensors, bits, *inside)


def _jumps_in(evidence: Evidence, tensors: Array, start: int, stop: int, bits: float) -> Iterator[Jump]:
    """The first jump of each tensor in the steps [start, stop), judged by the `WINDOW` before them."""
    deadline.check()
    low, end = max(evidence.start, start - WINDOW), min(evidence.whole_stop, stop + LASTING)
    names = ("call_count", "amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, end, names, tensors)
    calls, amax, nans, infs = (np.asarray(block.columns[name], np.float64) for name in names)
    with np.errstate(divide="ignore"):
        points = np.where((calls > 0) & (nans + infs == 0) & (amax > 0), np.log2(amax), np.nan)
    steps = np.arange(low, end)
    for tensor, row in zip(tensors.tolist(), points, strict=True):
        there = np.isfinite(row)
        jump = _jump(tensor, steps[there], row[there], bits, start)
        if jump is not None and jump.step < stop:
            yield jump


def _jump(tensor: int, steps: Array, bits: Array, least: float, start: int) -> Jump | None:
    if len(bits) <= HISTORY + 1:
        return None
    largest = np.r_[-np.inf, np.maximum.accumulate(bits)[:-1]]
    could = np.flatnonzero((bits >= largest + least) & (np.arange(len(bits)) >= HISTORY) & (steps >= start))
    for at in could.tolist():
        before, usual = float(largest[at]), float(np.median(bits[:at]))
        if bits[at] - before < SPREAD * (before - usual):
            continue
        low = at + 1 + np.flatnonzero(bits[at + 1 :] <= before + BACK_BITS)
        if len(low) and steps[low[0]] - steps[at] <= LASTING:
            back = int(low[0])
            amax = float(bits[at:back].max())
            return Jump(
                tensor, int(steps[at]), int(steps[back]), 2.0**before, 2.0**amax, float(2.0 ** bits[back])
            )  # fmt: skip
    return None


def _loss(evidence: Evidence, step: int) -> tuple[str, float, float] | None:
    """Its name, what was usual before the step, and the last value before it; None: not known."""
    name = loss_name(evidence)
    values = np.zeros(0) if name is None else evidence.series(name, max(evidence.start, step - WINDOW), step)
    values = values[np.isfinite(values)]
    if name is None or len(values) < 2:
        return None
    return name, float(np.median(np.abs(values))), float(values[-1])


def _had_blown_up(evidence: Evidence, step: int) -> bool:
    """Whether the loss was far above what is usual before the step: the weights had moved then."""
    known = _loss(evidence, step)
    return known is not None and abs(known[2]) > BLOWN * known[1] > 0


def _is_of_another(evidence: Evidence, step: int) -> bool:
    """Whether what happened at the step is told of otherwise."""
    return _had_blown_up(evidence, step) or _is_nonfinite(evidence, step)


def _is_nonfinite(evidence: Evidence, step: int) -> bool:
    """Whether a tensor that was finite in the step before is not: that is told of as the first NaN or Inf."""
    bad = evidence.window(("nan_count", "inf_count"), 2, step + 1)
    if bad.stop - bad.start < 2:
        return False
    counts = bad.columns["nan_count"] + bad.columns["inf_count"]
    return bool(((counts[:, 1] > 0) & (counts[:, 0] == 0)).any())


def _finding(evidence: Evidence, jump: Jump, *, is_first: bool, alike: int) -> Finding:
    entry = evidence.tensors.entries[jump.tensor]
    rank, others = odd_rank(evidence, jump.tensor, jump.step)
    factor = jump.amax / jump.before
    lasted = "one step" if jump.back - jump.step == 1 else f"{jump.back - jump.step} steps"
    norm = _running_norm(evidence, jump)
    return Finding(
        rank=rank, step=jump.step, tensor=entry.fqn, kind=entry.kind, subject="outlier",
        summary=f"{place(jump.step, rank)}: {the(entry)} was {factor:.3g} times as large as ever before, for {lasted}: "
        f"{'the batch was that large' if is_first else 'a batch that is given to it was, or code before it made it so'}"
        f"{', and the running statistics of ' + norm[0] + ' have it now' if norm else ''}.",
        evidence=(
            *_evidence(evidence, jump, norm, others, is_first=is_first, alike=alike),
            *row_sentences(evidence.run, evidence.ranks[:MOST_RANKS] if rank is None else (rank,), jump.step),
        ),
        remedy=tuple(_remedies(jump, norm)),
        facts={
            "factor": factor, "amax": jump.amax, "before": jump.before, "back_step": jump.back,
            "running_statistics": norm[0] if norm else None, "cause_class": "data",
        },
    )  # fmt: skip


def _running_norm(evidence: Evidence, jump: Jump) -> tuple[str, str] | None:
    """Name and class of the first module that keeps running statistics of its batches, where what was called right
    before it was as large."""
    entries, position = evidence.tensors.entries, evidence.tensors.position
    outputs = tensors_of(evidence, "output")
    behind = outputs[position[outputs] >= position[jump.tensor]]
    ordered = behind[np.argsort(position[behind], kind="stable")].tolist()
    amax = evidence.window(("amax",), jump.back - jump.step + 1, jump.back + 1).columns["amax"]
    for given, tensor in itertools.pairwise(ordered):
        if _keeps_statistics(entries[tensor]):
            is_large = amax[given, 0] >= amax[given, -1] * np.sqrt(jump.amax / jump.before)
            return (entries[tensor].fqn, entries[tensor].module) if is_large else None
    return None


def _evidence(
    evidence: Evidence, jump: Jump, norm: tuple[str, str] | None, others: str, *, is_first: bool, alike: int
) -> Iterator[str]:
    yield (
        f"Its largest magnitude was {jump.amax:.3g}; before it was {jump.before:.3g} at most, and at step {jump.back} "
        f"it was {jump.after:.3g} again: no update moves a weight so far and back."
    )
    if is_first:
        yield "It is the first module that is called: what it is given is the batch itself."
    else:
        yield (
            "It is one of the first modules that are called, and those before it were usual. What it was given was not "
            "recorded (kind input)."
        )
    if others:
        yield others
    if alike > 1:
        yield f"{alike - 1} more of the first outputs jumped in this step."
    yield from _loss_sentences(evidence, jump.step)
    if norm is not None:
        yield _statistics(*norm, jump.amax / jump.before)


def _loss_sentences(evidence: Evidence, step: int) -> Iterator[str]:
    known = _loss(evidence, step)
    if known is None:
        return
    name, usual, _ = known
    now = evidence.series(name, step, step + 1)
    if len(now) and np.isfinite(now[0]):
        yield f"The loss ({name}) of the step was {float(now[0]):.4g}; before it the median was {usual:.4g}."


def _statistics(name: str, module: str, factor: float) -> str:
    return (
        f"{name} ({module}) normalises by the batch in training, where this one leaves no trace, and keeps a running "
        f"mean and variance for evaluation: with torch's momentum of {MOMENTUM} they are wrong by this batch for about "
        f"{_steps_to_forget(factor)} steps, and so is each evaluation and each checkpoint of that time."
    )


def _own_statistics(norm: TensorEntry, times: float) -> str:
    return (
        f"Cause (shown): since then the output of {norm.fqn} ({norm.module}) is {times:.3g} times as small, of inputs "
        "that are as they were. No update does that in one step: code there, or right before it, divides by a "
        "deviation over the batches so far, which has this one in it for good, or for as long as it remembers. What "
        "the layers behind it are given is nearly the same whatever the input."
    )


def _steps_to_forget(factor: float) -> int:
    """Until the part of a running variance that such a batch left is as small as the usual variance."""
    return max(1, int(np.ceil(np.log(MOMENTUM * factor**2) / -np.log(1 - MOMENTUM))))


def _remedies(jump: Jump, norm: tuple[str, str] | None, *, is_own: bool = False) -> Iterator[Remedy]:
    """`is_own`: the module that keeps the statistics is of the user's own code."""
    yield Remedy(
        f"Find the batch of step {jump.step} in the data, and leave such batches out before the forward.",
        "def largest(batch):  # print it with the step in the loader, where the batch is still on the CPU\n"
        "    return max((float(each.abs().max()) for each in batch if each.is_floating_point()), default=0.0)",
        "one step alone was so large, and the steps before and after it were usual with the same weights",
    )
    if norm is not None and is_own:
        yield Remedy(
            f"Clip or filter what {norm[0]} is given before it takes it into its statistics, and make those anew, or "
            f"go back to a checkpoint from before step {jump.step}.",
            "for name, buffer in model.named_buffers():\n    print(name, buffer)  # a mean and a variance out of all "
            "proportion",
            f"the output of {norm[0]} has been far smaller since that batch, of usual inputs",
        )
    elif norm is not None:
        yield Remedy(
            "Make the running statistics anew before the next evaluation, and give them some hundred batches.",
            "for module in model.modules():\n"
            "    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):\n"
            "        module.reset_running_stats()",
            f"{norm[0]} took this batch into them; they are buffers, which are not recorded",
        )


RULE = Rule(
    name="outlier_batch",
    title="A batch was far larger than all others",
    severity="warning",
    explanation="The output of one of the first modules was thousands of times as large as ever before, for a step or "
    "a few, and then as it had been: the batch of that step was. A normalisation hides it from the loss, but running "
    "statistics (BatchNorm) keep it, and evaluation goes by them; an optimizer's moments may keep it, too. Of a "
    "normalisation by code of one's own that goes by its running statistics in training as well: its output has been "
    "far smaller since.",
    check=check,
    thresholds=(Threshold("least", 12.0, "bits", "How far above the largest before it a first output must be."),),
    explains=(
        "loss_spike", "exploding_gradient", "vanishing_gradient", "update_ratio", "dead_activation",
        "saturated_activation", "attention_logits", "headroom_trend", "underflow_rising", "short_spike",
    ),
)  # fmt: skip
