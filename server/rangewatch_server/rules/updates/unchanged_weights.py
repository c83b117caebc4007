"""Early warning: a weight that does not change though it should: no optimizer has it, or no gradient reaches it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from rangewatch.wire.events import Optimizers, SampledWeights
from rangewatch.wire.records import TensorEntry
from rangewatch_server.core.text import ranks_text
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.query.events import StoredEvent
from rangewatch_server.rules.evidence import SCAN_COLUMNS, WINDOW, Evidence
from rangewatch_server.rules.loss.series import UPDATE, WRITTEN, rates
from rangewatch_server.rules.optimizers import keeps_squares, newest_optimizers, sampled_weights
from rangewatch_server.rules.phrases import few_of, listed, place
from rangewatch_server.rules.recent import SQUARES, Array, History, history, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds
from rangewatch_server.rules.updates.frozen_updates import frozen
from rangewatch_server.rules.updates.idle_group import idle_group
from rangewatch_server.rules.updates.module_switch import module_switch
from rangewatch_server.rules.updates.same_bits import same_bits
from rangewatch_server.rules.updates.unreached import not_reached
from rangewatch_server.rules.updates.unregistered import unregistered

LASTING = 3
"""Groups of 64 steps in a row with a reading of the weight."""

NEGLIGIBLE = 1e-5
"""Of the median weight's gradient. One that is smaller is rounding: that of an attention's key bias is 0 by its
formula, which softmax takes away, and was 1e-7 of the median in healthy trainings in float32."""

ROUNDING = 4e-15
"""Relative: sums of equal squares over several ranks or readings differ by it."""


class Unchanged(msgspec.Struct, frozen=True):
    """Between the steps `since` and `until`, in `readings` groups of steps; `amax` of its gradient then."""

    tensor: int
    since: int
    until: int
    readings: int
    amax: float


SETTLED, REPLACED = 64, 16
"""Steps that a parameter must have been without an optimizer, or without a gradient: layers are unfrozen in stages. The
second: one that took the place of another, which an optimizer has."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding of each of eight: values that stay, or learning rates of 0 that leave them as they are;
    updates without anything of the gradients, or of a parameter that they leave as it is; weights that no attached
    optimizer has and nothing changes; parameters of no optimizer; those no backward reaches; what an attribute was
    to freeze or thaw; and what the loss depends on that the model does not hold.
    """
    newest = {event.rank: (event, optimizers) for event, optimizers in evidence.details(Optimizers)}
    zero_rate = next((newest[rank] for rank in sorted(newest) if newest[rank][1].zero_rate_steps), None)
    settled = [
        (event, known)
        for event, known in (newest[rank] for rank in sorted(newest))
        if event.step + (REPLACED if known.replaced else SETTLED) <= evidence.stop
    ]
    left_out = next(((event, each) for event, each in settled if each.left_out), None)
    unreached = next(((event, each) for event, each in settled if each.unreached), None)
    found = next(idle_group(evidence), None) if zero_rate is None else _zero_rate(evidence, *zero_rate)
    if (found := found or next(frozen(evidence), None)) is not None:
        yield found
    else:
        known = frozenset() if left_out is None else frozenset(left_out[1].left_out)
        still = list(_still(evidence, known))
        yield from still or _same_bits(evidence, known)
    if left_out is None:
        yield from _no_longer_copied(evidence)
        if found is None:
            yield from _no_longer_moved(evidence)
    else:
        yield _left_out(evidence, *left_out)
    if unreached is not None:
        yield not_reached(evidence, *unreached)
    yield from module_switch(evidence)
    yield from unregistered(evidence)


def _zero_rate(evidence: Evidence, event: StoredEvent, optimizers: Optimizers) -> Finding | None:
    """None where no parameter has had a gradient since."""
    since = event.step - optimizers.zero_rate_steps + 1
    before = ""
    if since > evidence.start:
        values = rates(evidence, since - SETTLED, since)
        values = values[np.isfinite(values) & (values > 0)]
        if len(values):
            before = f" It had been {values[-1]:.3g} right before, and {values.max():.3g} in the steps before."
    gradients = tensors_of(evidence, "grad")
    amax = evidence.window(("amax",)).columns["amax"][gradients].max(axis=1, initial=0.0)
    pushed = gradients[amax > 0]
    if not len(pushed):
        return None
    entry = evidence.tensors.entries[int(pushed[np.argmax(evidence.tensors.position[pushed])])]
    rank = only_rank(evidence)
    return Finding(
        rank=rank, step=since, tensor=entry.fqn, kind=entry.kind, subject="zero_rate",
        summary=f"{place(since, rank)}: every learning rate has been 0 since: no weight changes any more, though "
        f"{len(pushed)} parameters get gradients.",
        evidence=(
            f"In all parameter groups ({', '.join(optimizers.classes)}) lr was exactly 0 for "
            f"{optimizers.zero_rate_steps} steps in a row up to step {event.step}, and no other has been seen since."
            f"{before}",
            "Cause (shown): the learning rate. "
            + (
                "Its schedule ends here: it is too short for this training, or is moved more than once a step, as by "
                "each of several processes or by a trainer and the loop."
                if before else "It has been 0 since the first step." if since <= evidence.start
                else "What it was before is not known."
            ),
            f"Such as {entry.fqn}, which is not updated with the gradient it gets, {amax.max():.3g} at most.",
        ),
        remedy=(
            Remedy(
                "Look at the schedule of the learning rate: it has ended before the training has, as one that is moved "
                "twice a step, once for each process (Accelerate's prepared scheduler moves so: give it the length "
                "times the processes), or made for fewer steps. If the training is to end here, end it.",
                "print([group['lr'] for group in optimizer.param_groups])  # at each step",
                "the optimizers' own parameter groups were read at each step",
            ),
        ),
        facts={"since_step": since, "parameters": len(pushed), "cause_class": "learning_rate"},
    )  # fmt: skip


STILL, COPIED, MOSTLY = 64, 16, 0.5
"""Steps in a row in which weights that no attached optimizer has stay as they are, and those before in which they were
changed, in more than this share."""

SEEN = 4_096
"""Last steps that are counted in which they stayed so."""


def _no_longer_copied(evidence: Evidence) -> Iterator[Finding]:
    """Weights that something else than an attached optimizer changed, and that nothing changes any more. One rank's
    optimizer may update them for all ranks, which are sent them."""
    newest = {event.rank: known for event, known in evidence.details(SampledWeights)}
    known = next(iter(newest.values()), None)
    if known is None or any(each.are_held for each in newest.values()) or not evidence.has_series(WRITTEN):
        return
    last = _last_written(evidence)
    low = evidence.start if last is None else max(evidence.start, last + 1 - STILL)
    since = low if last is None else last + 1
    seen = max(since, evidence.whole_stop - SEEN)
    still = int((evidence.largest(WRITTEN, seen, evidence.whole_stop) == 0).sum())
    if still < STILL:
        return
    if last is not None:
        before = evidence.largest(WRITTEN, low, last + 1)
        before = before[~np.isneginf(before)]
        if len(before) < COPIED or np.mean(before > 0) <= MOSTLY:
            return
    entries, gradients = evidence.tensors.entries, tensors_of(evidence, "grad")
    mine = np.array([each for each in gradients.tolist() if entries[each].fqn in known.names], np.int64)
    amax = evidence.window(("amax",)).columns["amax"][:, -STILL:]
    usual = np.median(amax[gradients].max(axis=1, initial=0.0)) if len(gradients) else 0.0
    pushed = [each for each in mine.tolist() if (amax[each] > 0).all() and amax[each].max() > NEGLIGIBLE * usual]
    if pushed:
        since = evidence.start if last is None else last
        yield _not_copied(evidence, entries[pushed[0]], since, still, known.names, last is not None)


def _last_written(evidence: Evidence) -> int | None:
    """The last step before which anything but an update changed the sampled weights; None: never."""
    start, stop = evidence.start, evidence.whole_stop
    level = level_for(stop - start, SCAN_COLUMNS)
    changed = np.flatnonzero(evidence.largest(WRITTEN, start, stop, level) > 0)
    if not len(changed):
        return None
    size = FANOUT**level
    begin = max(start, (start // size + int(changed[-1])) * size)
    return begin + int(np.flatnonzero(evidence.largest(WRITTEN, begin, min(stop, begin + size)) > 0)[-1])


WIDE = ("float32", "float64")
"""Dtypes in which no update is lost in rounding for so long."""


LEAST_UPDATE, CONVERGED, AT_FIRST = 1e-6, 1e-3, 8
"""The change of an element that rate and gradient must come to: a smaller one may be rounded away. And the part that
must be left of the gradients of so many first steps."""

ENDS_ITSELF = "LBFGS"
"""Its search may find no better place any more, or its tolerances be met: then it changes nothing."""


def _no_longer_moved(evidence: Evidence) -> Iterator[Finding]:
    """Updates of an attached optimizer that leave a parameter as it is to the bit, which gets a gradient in each step;
    and no matrix has moved in any of them."""
    known = sampled_weights(evidence)
    if known is None or not known.are_held or not known.names or not evidence.has_series(UPDATE):
        return
    low = max(evidence.start, evidence.whole_stop - WINDOW)
    moved = evidence.largest(UPDATE, low, evidence.whole_stop)
    steps, moved = low + np.flatnonzero(~np.isneginf(moved)), moved[~np.isneginf(moved)]
    other = np.flatnonzero(moved != 0)
    first = int(other[-1]) + 1 if len(other) else 0
    if len(moved) - first < STILL:
        return
    if any(ENDS_ITSELF in known.classes for _, known in evidence.details(Optimizers)):
        return
    since, has_moved = (int(steps[first]), True) if len(other) else _still_since(evidence)
    gradients = tensors_of(evidence, "grad")
    fractions = evidence.largest("update_fraction", since, evidence.whole_stop)
    if (fractions > 0).any():
        return
    if not len(gradients) and not has_moved and not np.isfinite(fractions).any() and _reads_gradients(evidence):
        if _is_felt(evidence, since, None):
            yield _never_moved(evidence, known.names[0], since, len(moved))
        return
    mine = _pushed(evidence, gradients, known.names[0])
    if mine is not None and _is_felt(evidence, since, mine) and not _has_converged(evidence, gradients):
        entry = evidence.tensors.entries[mine]
        yield _not_moved(evidence, entry, since, len(moved) - first, has_moved=has_moved)


def _still_since(evidence: Evidence) -> tuple[int, bool]:
    """The first update after the last that changed the sampled parameter, and whether there was such a one."""
    start, stop = evidence.start, evidence.whole_stop
    level = level_for(stop - start, SCAN_COLUMNS)
    moved = np.flatnonzero(~np.isin(evidence.largest(UPDATE, start, stop, level), (0.0, -np.inf)))
    size = FANOUT**level
    begin = max(start, (start // size + int(moved[-1])) * size) if len(moved) else start
    values = evidence.largest(UPDATE, begin, min(stop, begin + size + WINDOW))
    last = np.flatnonzero(~np.isin(values, (0.0, -np.inf)))
    after = int(last[-1]) + 1 if len(last) else 0
    there = np.flatnonzero(~np.isneginf(values[after:]))
    return begin + after + (int(there[0]) if len(there) else 0), bool(len(moved))


def _pushed(evidence: Evidence, gradients: Array, name: str) -> int | None:
    """The gradient of the parameter `name` where that is there in each of the last steps, and no rounding."""
    entries = evidence.tensors.entries
    mine = [each for each in gradients.tolist() if entries[each].fqn == name and entries[each].dtype in WIDE]
    if not mine:
        return None
    amax = evidence.window(("amax",)).columns["amax"][:, -STILL:]
    usual = np.median(amax[gradients].max(axis=1, initial=0.0))
    is_pushed = (amax[mine[0]] > 0).all() and amax[mine[0]].max() > NEGLIGIBLE * usual
    return mine[0] if is_pushed else None


def _is_felt(evidence: Evidence, since: int, gradient: int | None) -> bool:
    """Whether an update by the rates since then would change an element that is near 1; True where none is known."""
    rate = rates(evidence, max(since, evidence.whole_stop - WINDOW), evidence.whole_stop)
    rate = rate[np.isfinite(rate)]
    if not len(rate):
        return True
    size = 1.0
    if gradient is not None and not keeps_squares(evidence):
        amax = float(evidence.window(("amax",)).columns["amax"][gradient, -STILL:].max())
        size = min(1.0, amax / _scale(evidence, evidence.whole_stop - STILL, evidence.whole_stop))
    return bool(rate.max() * size > LEAST_UPDATE)


def _scale(evidence: Evidence, start: int, stop: int) -> float:
    """The largest loss scale in [start, stop); 1.0 where there is none."""
    values = evidence.series("loss_scale", start, stop) if evidence.is_loss_scaled else np.ones(1)
    values = values[np.isfinite(values) & (values > 0)]
    return float(values.max()) if len(values) else 1.0


def _has_converged(evidence: Evidence, gradients: Array) -> bool:
    """Whether gradients are next to nothing beside those of the first steps."""
    start, stop = evidence.start, evidence.start + AT_FIRST
    first = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, stop, ("amax",), gradients).columns["amax"]
    last = evidence.window(("amax",)).columns["amax"][gradients, -STILL:]
    before, now = (float(np.median(np.asarray(each, np.float64).max(axis=0, initial=0.0))) for each in (first, last))
    low = evidence.whole_stop - STILL
    return now / _scale(evidence, low, evidence.whole_stop) < CONVERGED * before / _scale(evidence, start, stop)


class _Attached(msgspec.Struct):
    """What is read of the options in an event `attached`."""

    options: dict[str, Any] = {}


def _reads_gradients(evidence: Evidence) -> bool:
    """Whether the agent was to read the gradients of all parameters."""
    newest = next(iter(evidence.run.events("attached", 1)), None)
    try:
        options = {} if newest is None else msgspec.json.decode(newest.data, type=_Attached).options
    except msgspec.MsgspecError:
        return False
    kinds = options.get("kinds")
    return isinstance(kinds, list) and "grad" in kinds and not options.get("include") and not options.get("exclude")


def _never_moved(evidence: Evidence, name: str, since: int, count: int) -> Finding:
    rank = only_rank(evidence)
    return Finding(
        rank=rank, step=since, tensor=name, kind="weight", subject="moved",
        summary=f"{place(since, rank)}: the optimizer's updates have changed nothing so far: {name} is what it was, "
        "and no parameter of the model has had a gradient.",
        evidence=(
            f"It was the same to the bit after the last {count} updates, up to step {evidence.whole_stop - 1}.",
            "Cause (likely): no backward reaches the model that the optimizer has: it goes through a copy of it, or "
            "ends where the graph is cut by .data, detach() or no_grad.",
            "What would decide: print a parameter's .grad right before optimizer.step().",
        ),
        remedy=(
            Remedy(
                "Look for what cuts the graph between the model's parameters and the loss: a deepcopy that is trained "
                "in its place, a write through .data or under no_grad where a step should be part of the graph, a "
                "detach().",
                "print([name for name, each in model.named_parameters() if each.grad is None])  # after the backward",
                "no gradient has been seen on any parameter, and no update has moved what was compared",
            ),
        ),
        facts={"since_step": since, "steps": count, "cause_class": "no_gradient"},
    )  # fmt: skip


def _not_moved(evidence: Evidence, entry: TensorEntry, since: int, count: int, *, has_moved: bool) -> Finding:
    rank = only_rank(evidence)
    return Finding(
        rank=rank, step=since, tensor=entry.fqn, kind="grad", subject="moved",
        summary=f"{place(since, rank)}: the optimizer's updates change nothing{' any more since' if has_moved else ''}"
        f": {entry.fqn} stays as it is, though the backward gives it a gradient in each step.",
        evidence=(
            f"It was the same to the bit after the last {count} updates, up to step {evidence.whole_stop - 1}, and no "
            "matrix moved in those of them in which that is read.",
            "Cause (likely): the gradients are gone when the optimizer steps, as where zero_grad() stands between the "
            "backward and the step. Against that: an optimizer that has other parameters than those that it was "
            "attached with changes nothing of these either.",
            "What would decide: print a parameter's .grad right before optimizer.step().",
        ),
        remedy=(
            Remedy(
                "Call optimizer.zero_grad() before the backward or after the step, and not between the two.",
                "optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
                "gradients arrived in each backward, and no update moved what was compared",
            ),
        ),
        facts={"since_step": since, "steps": count, "cause_class": "optimizer"},
    )  # fmt: skip


_OWN_PARAMETERS = Remedy(
    "Make the optimizer of the model's own parameters, after the model was copied, wrapped or loaded: it may have "
    "those of another, as of the one that this is a copy of.",
    "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # of the model that is called in the loop",
    "no optimizer that was seen has a parameter of this model, and gradients arrived at each step",
)


def _not_copied(
    evidence: Evidence, entry: TensorEntry, since: int, count: int, names: Sequence[str], has_changed: bool
) -> Finding:
    rank, at = only_rank(evidence), evidence.whole_stop - 1
    before = (
        f"Until the forward of step {since} they were changed between steps, by code that is not an attached "
        "optimizer's: as where an optimizer has copies of its own (master weights) that the loop copies back."
        if has_changed else "They have not changed since the run began, and no attached optimizer has them."
    )  # fmt: skip
    # The agent says nothing of an optimizer that has none of the model's parameters.
    has_none = not has_changed and not newest_optimizers(evidence).classes
    return Finding(
        rank=rank, step=since, tensor=entry.fqn, kind="grad", subject="copied",
        summary=f"{place(since, rank)}: weights do not change{' any more since' if has_changed else ''}, though they "
        f"get gradients: nothing updates {' and '.join(names)}.",
        evidence=(
            f"{' and '.join(names)} were the same to the bit in {count} forwards in a row, up to step {at}.", before,
            "Cause (likely): the update itself, or the copy of its result into the model, is left out. Against that: "
            "updates below half a step of a low precision change nothing either.",
            "What would decide: print a weight of the model and its copy in the optimizer before and after a step.",
        ),
        remedy=(
            *([_OWN_PARAMETERS] if has_none else []),
            Remedy(
                "See whether the optimizer steps, and whether what it updates is copied back into the model's weights "
                "after each step.",
                "with torch.no_grad():  # after optimizer.step(), where the optimizer has copies\n"
                "    copies = [each for group in optimizer.param_groups for each in group['params']]\n"
                "    for weight, copy in zip(model.parameters(), copies, strict=True):\n"
                "        weight.copy_(copy)",
                "weights were compared at each forward, and gradients arrived at each step",
            ),
        ),
        facts={"since_step": since, "steps": count, "cause_class": "optimizer"},
    )  # fmt: skip


def _still(evidence: Evidence, left_out: frozenset[str]) -> Iterator[Finding]:
    """The first weight that stays though it gets gradients and is not known to be `left_out` of all optimizers, and how
    many more there are.
    """
    weights, gradients = tensors_of(evidence, "weight"), tensors_of(evidence, "grad")
    if not len(weights) or not len(gradients):
        return
    entries = evidence.tensors.entries
    by_name = {entries[int(each)].fqn: at for at, each in enumerate(gradients)}
    values, pushed = history(evidence, weights, SQUARES), history(evidence, gradients)
    unchanged = []
    for at, tensor in enumerate(weights):
        place = by_name.get(entries[int(tensor)].fqn)
        if place is None or entries[int(tensor)].fqn in left_out:
            continue
        if (each := _unchanged(values, at, pushed, place, int(tensor))) is not None:
            unchanged.append(each)
    usual = np.median(pushed.columns["amax"].max(axis=1, initial=0.0))
    unchanged = [each for each in unchanged if each.amax > NEGLIGIBLE * usual]
    if unchanged:
        yield _finding(evidence, unchanged, len(weights))


def _unchanged(values: History, at: int, pushed: History, place: int, tensor: int) -> Unchanged | None:
    """None where it changed, was read too seldom, is all zero, or got no gradient all that time."""
    read = np.flatnonzero(values.columns["full_numel"][at] > 0)
    amax, mean_sq = values.columns["amax"][at][read], values.share("sum_sq")[at][read]
    same = (amax[1:] == amax[:-1]) & (np.abs(np.diff(mean_sq)) <= ROUNDING * mean_sq[1:]) & (amax[1:] > 0)
    changes = np.flatnonzero(~same)
    first = int(changes[-1]) + 1 if len(changes) else 0
    if len(read) - first < LASTING:
        return None
    span = slice(int(read[first]), int(read[-1]) + 1)
    calls, largest = pushed.columns["call_count"][place][span], pushed.columns["amax"][place][span]
    if not (calls > 0).all() or not (largest > 0).all():
        return None
    since, until = int(values.starts[read[first]]), int(values.ends[read[-1]])
    return Unchanged(tensor, since, until, len(read) - first, float(np.median(largest)))


def _finding(evidence: Evidence, unchanged: list[Unchanged], weights: int) -> Finding:
    first = unchanged[0]
    entry = evidence.tensors.entries[first.tensor]
    rank = only_rank(evidence)
    where = place(first.until, rank)
    more = [evidence.tensors.entries[each.tensor] for each in unchanged[1:]]
    everything = f"so do all {weights} weights" if len(unchanged) == weights else f"{len(more)} more do: {listed(more)}"
    return Finding(
        rank=rank, step=first.until, tensor=entry.fqn, kind="weight", subject="unchanged",
        summary=f"{where}: the weight {entry.fqn} has not changed since step {first.since}, though it gets gradients.",
        evidence=tuple(_evidence(evidence, first, everything if more else "")),
        remedy=tuple(_remedies(entry.fqn, entry.dtype)),
        facts={"since_step": first.since, "readings": first.readings, "tensors": len(unchanged), "of": weights},
    )  # fmt: skip


def _evidence(evidence: Evidence, first: Unchanged, everything: str) -> Iterator[str]:
    yield (
        f"In {first.readings} readings its largest magnitude was the same to the bit, and the sum of its squares, too; "
        f"its gradient's largest magnitude was {first.amax:.3g} meanwhile."
    )
    lr = _series(evidence, "lr")
    if len(lr):
        yield f"The learning rate is {lr[-1]:.3g}."
    skipped = _series(evidence, "skipped_step")
    if len(skipped) and skipped.mean() > 0.5:
        yield f"The loss scaler skipped {skipped.mean():.0%} of the last {len(skipped)} steps."
    if everything:
        yield f"{everything[0].upper()}{everything[1:]}."


def _series(evidence: Evidence, name: str) -> Array:
    values = evidence.series(name) if evidence.has_series(name) else np.zeros(0)
    return values[np.isfinite(values)]


def _remedies(fqn: str, dtype: str) -> Iterator[Remedy]:
    because = "based on readings of the weight itself"
    yield Remedy(
        "See whether the optimizer has it, and with which learning rate.",
        f"wanted = dict(model.named_parameters())[{fqn!r}]\n"
        "print([group['lr'] for group in optimizer.param_groups if any(each is wanted for each in group['params'])])",
        because,
    )
    if dtype in ("float16", "bfloat16"):
        yield Remedy(
            f"Updates below half a step of {dtype} are rounded away: keep the weights in float32, under autocast.",
            "model.float()  # before the optimizer is made", because,
        )  # fmt: skip


def _same_bits(evidence: Evidence, left_out: frozenset[str]) -> Iterator[Finding]:
    """By the checksums by which ranks are compared, which need no kind of their own."""
    entries = evidence.tensors.entries
    same = [each for each in same_bits(evidence) if entries[each.tensor].fqn not in left_out]
    if not same:
        return
    first = same[0]
    fqn = entries[first.tensor].fqn
    of = f"of the {len(first.ranks)} ranks" if len(first.ranks) == len(evidence.ranks) else ranks_text(first.ranks)
    others = [entries[each.tensor] for each in same[1:]]
    more = (f"So {'does' if len(others) == 1 else 'do'} {listed(others)}, at least.",) if others else ()
    yield Finding(
        rank=first.ranks[0] if len(first.ranks) == 1 else None, step=first.since, tensor=fqn, kind="grad",
        subject="same_bits",
        summary=f"Step {first.since}{' or before' if first.is_before else ''}: nothing changes the parameter {fqn} any "
        f"more, though it gets gradients: no optimizer {of if len(first.ranks) > 1 else 'of this rank'} updates it.",
        evidence=(
            f"Its bits were the same in {first.readings} readings up to step {first.until}, on every rank that holds a "
            f"part of it ({ranks_text(first.ranks)}); its gradient's largest magnitude was {first.amax:.3g} meanwhile.",
            *more,
        ),
        remedy=(
            *_remedies(fqn, entries[first.tensor].dtype),
            Remedy(
                "Make the optimizer after the model is sharded, wrapped or given new layers: it holds the parameters "
                "that there were when it was made, and those may be no part of the model any more.",
                "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # after fully_shard",
                "its bits stay the same on every rank",
            ),
        ),
        facts={"since_step": first.since, "readings": first.readings, "tensors": len(same), "ranks": list(first.ranks),
               "cause_class": "optimizer"},
    )  # fmt: skip


def _left_out(evidence: Evidence, event: StoredEvent, optimizers: Optimizers) -> Finding:
    """A warning where gradients are computed for what is left out and that is little, or all, or where more is
    frozen, as of a model that adapters are put into: else the rest may be meant to stay as it is.
    """
    entries = evidence.tensors.entries
    with_gradient, with_weight = (
        {entries[int(each)].fqn for each in tensors_of(evidence, kind)} for kind in ("grad", "weight")
    )
    first, count = optimizers.left_out[0], optimizers.left_out_count
    orphans = optimizers.orphan_count
    is_odd = 2 * count < optimizers.trainable_count or count == optimizers.trainable_count or bool(optimizers.replaced)
    are_all_named = len(optimizers.left_out) == count
    is_adapted = optimizers.frozen_count > optimizers.trainable_count
    is_odd = is_odd or orphans > 0 or is_adapted
    is_odd = is_odd or (are_all_named and _is_behind_its_like(optimizers.left_out, with_gradient))
    named = optimizers.replaced or optimizers.left_out
    has_gradient = any(fqn in with_gradient for fqn in named)
    if has_gradient:
        first = next(fqn for fqn in named if fqn in with_gradient)
    which = f"parameters {first} and {count - 1} more are" if count > 1 else f"parameter {first} is"
    return Finding(
        severity="warning" if is_odd and has_gradient else "info",
        rank=event.rank, step=event.step, tensor=first,
        kind="grad" if has_gradient and first not in with_weight else "weight",
        subject="no_optimizer",
        summary=f"{place(event.step, event.rank)}: the {which} in no optimizer: nothing updates "
        f"{'them' if count > 1 else 'it'}.",
        evidence=(
            f"Of {optimizers.trainable_count} parameters that require a gradient {count} are in no optimizer "
            f"({', '.join(optimizers.classes)}): {few_of(optimizers.left_out, count)}.",
            *(["Gradients are computed for it at each step, and nobody uses them."] if has_gradient else []),
            *(
                [f"{optimizers.frozen_count} others require no gradient: what is meant to stay is frozen here."]
                if is_adapted else []
            ),
            *(
                [
                    f"{'These optimizers have' if len(optimizers.classes) > 1 else 'It has'} {orphans} "
                    f"parameter{'s' if orphans > 1 else ''} that {'are' if orphans > 1 else 'is'} no part of the model "
                    "and got no gradient when others did: it was made before the model's parameters were made anew, "
                    "as by weight_norm, a new head, a cast or a wrapper."
                ]
                * (orphans > 0 and not optimizers.replaced)
            ),
            *(
                [
                    f"Another parameter took the place of {few_of(optimizers.replaced, len(optimizers.replaced))} at "
                    f"step {event.step}, as where an embedding is resized or a layer is made anew: the optimizer still "
                    "has the one from before, which is no part of the model any more."
                ]
                * bool(optimizers.replaced)
            ),
        ),
        remedy=(
            Remedy(
                (
                    "Make the optimizer after the model is whole, adapters included; "
                    if orphans or is_adapted
                    else f"Give {'them' if count > 1 else 'it'} to the optimizer; "
                )
                + "or freeze what is meant to stay.",
                f"wanted = dict(model.named_parameters())[{first!r}]\n"
                "optimizer.add_param_group({'params': [wanted]})  # or wanted.requires_grad_(False)",
                "the optimizers' own parameter groups were read",
            ),
        ),
        facts={"parameters": count, "of": optimizers.trainable_count, "cause_class": "optimizer"},
    )  # fmt: skip


_NUMBER = re.compile(r"(?<![^.])(\d+)(?=\.)")


def _is_behind_its_like(left_out: Sequence[str], with_gradient: Collection[str]) -> bool:
    """Whether the same parameter of an earlier block is in an optimizer: a part that is trained is a network's end."""
    held, out = set(with_gradient).difference(left_out), set(left_out)
    for name in out:
        for number in _NUMBER.finditer(name):
            before = (f"{name[: number.start(1)]}{at}{name[number.end(1) :]}" for at in range(int(number[1])))
            if any(each in held for each in before):
                return True
    return False


RULE = Rule(
    name="unchanged_weights",
    title="Weights do not change",
    severity="warning",
    explanation="A parameter's gradient is not zero, and yet its values are what they were: the optimizer does not "
    "have it, has a learning rate of 0 for it, or its updates are lost in rounding (needs the kind weight). Or no "
    "optimizer has it, or an optimizer has it and no backward reaches it, or all learning rates have been 0 for 64 "
    "steps, which the agent reports at any level; or nothing of the gradients is in an Adam's updates any more, as "
    "once its squares are Inf; or requires_grad was set on a module, where it does nothing; or the loss depends on "
    "parameters that the model does not hold, as of layers in a plain list, and that no optimizer has. Of several "
    "ranks the checksums show it by which they are compared: no rank changes any part of it.",
    check=check,
    thresholds=(),
    explains=("loss_plateau",),
    leads_to=("tied_weights_differ",),
)
