"""Worth knowing: Inf that was there from the first steps and that nothing takes over, as a mask's; and its changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch.wire.events import Nonfinite
from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.query.inf_by_design import FIRST_STEPS
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.phrases import listed, place, the
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

MOST_SEARCHED = 64
"""Tensors whose Inf is followed over the run, the first in call order."""

STEADY_STEPS = 16
"""Steps in which a count that is to be followed must have been the same: one that changes by batch is not followed."""

COLUMNS = ("call_count", "numel", "nan_count", "inf_count")


class Held(msgspec.Struct, frozen=True):
    """What a tensor held in the first steps: `least` to `most` Inf elements of each call's `numel`, first at `step`.
    `is_steady`: all the same in the first `STEADY_STEPS`, so that a change says something."""

    tensor: int
    step: int
    least: float
    most: float
    numel: float
    is_steady: bool


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """One finding on all of them, and one on the first that changed."""
    all_held = held(evidence)
    if not all_held:
        return
    yield _finding(evidence, all_held)
    if all_held[0].step + STEADY_STEPS > evidence.whole_stop:
        return
    changes = [
        (step, each)
        for each in [each for each in all_held if each.is_steady][:MOST_SEARCHED]
        if (step := _first_change(evidence, each)) is not None
    ]
    if changes:
        yield _changed(evidence, *min(changes, key=lambda change: change[0]), changes)


def held(evidence: Evidence) -> list[Held]:
    """In call order."""
    rows = evidence.run.inf_by_design
    stop = min(evidence.stop, evidence.start + FIRST_STEPS)
    if not len(rows) or evidence.start >= stop:
        return []
    block = evidence.run.stored(RANGES, list(evidence.ranks), 0, evidence.start, stop, COLUMNS, rows)
    calls, numel, _, infs = (np.asarray(block.columns[name], np.float64) for name in COLUMNS)
    order = np.argsort(evidence.tensors.position[rows], kind="stable")
    return [
        _held(int(rows[at]), block.first, calls[at], numel[at], infs[at])
        for at in order.tolist()
        if (infs[at][calls[at] > 0] > 0).any()
    ]


def _held(tensor: int, first: int, calls: Array, numel: Array, infs: Array) -> Held:
    seen = np.flatnonzero(calls > 0)
    share, size = infs[seen] / calls[seen], numel[seen] / calls[seen]
    with_inf = share[share > 0]
    early, sizes = share[:STEADY_STEPS], size[:STEADY_STEPS]
    is_steady = len(early) == STEADY_STEPS and bool((early == early[0]).all() and (sizes == sizes[0]).all())
    step = first + int(seen[int((share > 0).argmax())])
    if is_steady:
        return Held(tensor, step, float(early[0]), float(early[0]), float(sizes[0]), True)
    return Held(tensor, step, float(with_inf.min()), float(with_inf.max()), float(np.median(size)), False)


def _first_change(evidence: Evidence, steady: Held) -> int | None:
    """The first step at which a call held another number of Inf, or of elements, than in the first steps."""
    start = evidence.start
    level = level_for(evidence.whole_stop - start, SCAN_COLUMNS)
    low, high = start, evidence.whole_stop
    while low < high:
        deadline.check()
        block = evidence.run.stored(RANGES, list(evidence.ranks), level, low, high, COLUMNS, np.array([steady.tensor]))
        calls, numel, _, infs = (np.asarray(block.columns[name][0], np.float64) for name in COLUMNS)
        # Another number of elements is another batch, such as the last of an epoch, of which nothing is known.
        is_other = (calls > 0) & (infs != steady.most * calls) & (numel == steady.numel * calls)
        if not is_other.any():
            return None
        at, size = block.first + int(is_other.argmax()), FANOUT**level
        if level == 0:
            return at
        low, high, level = max(start, at * size), min(evidence.whole_stop, (at + 1) * size), level - 1
    return None


def _finding(evidence: Evidence, all_held: list[Held]) -> Finding:
    entries = [evidence.tensors.entries[each.tensor] for each in all_held]
    first, rank, word = all_held[0], only_rank(evidence), inf_word(evidence)
    patterns = list(dict.fromkeys(each.fqn or "(model)" for each in entries))
    text = f"{word} by design in {listed(entries)}"
    return Finding(
        rank=rank, step=min(each.step for each in all_held), tensor=entries[0].fqn, kind=entries[0].kind,
        subject="by design", summary=f"{place(min(each.step for each in all_held), rank)}: {text}; no overflow.",
        evidence=tuple(_evidence(evidence, all_held)),
        remedy=(
            Remedy(
                "Nothing is to be done. To have it no longer mentioned, name it:",
                f"rangewatch.attach(model, optimizer, allow_inf={patterns!r})",
                "nothing that was recorded took it over",
            ),
        ),
        facts={"tensors": len(all_held), "inf_count": first.most, "numel": first.numel, "patterns": patterns},
    )  # fmt: skip


def inf_word(evidence: Evidence) -> str:
    """ "-Inf" where modules were given Inf and all of it was -Inf, "Inf" where nobody looked at the sign."""
    given = [each for _, known in evidence.details(Nonfinite) for each in known.inputs or () if each.inf_count]
    return "-Inf" if given and all(each.is_mask for each in given) else "Inf"


def _evidence(evidence: Evidence, all_held: list[Held]) -> Iterator[str]:
    yield (
        "It was there from the first steps, and at the first of them there was no NaN in the forward, and loss and "
        "gradients did not take it over: that is what a mask looks like. It is not counted as overflow."
    )
    for each in all_held[:4]:
        count = f"{each.most:.0f}" if each.least == each.most else f"{each.least:.0f} to {each.most:.0f}"
        name = the(evidence.tensors.entries[each.tensor])
        yield f"{name[0].upper()}{name[1:]} held {count} Inf of {each.numel:.0f} elements a call."


def _changed(evidence: Evidence, step: int, steady: Held, changes: list[tuple[int, Held]]) -> Finding:
    entry, rank = evidence.tensors.entries[steady.tensor], only_rank(evidence)
    block = evidence.run.stored(RANGES, list(evidence.ranks), 0, step, step + 1, COLUMNS, np.array([steady.tensor]))
    calls, _, nans, infs = (float(block.columns[name][0, 0]) for name in COLUMNS)
    now = f"{infs / calls:.4g} Inf" + (f" and {nans / calls:.4g} NaN" if nans else "")
    more = [evidence.tensors.entries[each.tensor] for _, each in changes if each.tensor != steady.tensor]
    return Finding(
        rank=rank, step=step, tensor=entry.fqn, kind=entry.kind, subject="changed",
        summary=f"{place(step, rank)}: {the(entry)}, which holds Inf by design, held {now} of {steady.numel:.0f} "
        f"elements a call; until then it was {steady.most:.0f} in each step.",
        evidence=(*([f"So did {listed(more)}."] if more else []), "Other masks of other batches are no fault."),
        remedy=(
            Remedy("See whether the mask is meant to change there.", "", "based on the number of Inf alone"),
        ),
        facts={"before": steady.most, "inf_count": infs, "nan_count": nans, "changed": len(changes)},
    )  # fmt: skip


RULE = Rule(
    name="inf_by_design",
    title="Inf by design",
    severity="info",
    explanation="Tensors of the forward that have held Inf since the first steps, without NaN behind it, and with a "
    "finite loss and finite gradients: masks that are added or filled in, ALiBi, filters of the largest logits, "
    "padding. They are shown by their finite elements and not as overflow. That their number changes where it was "
    "always the same is a finding of its own. NaN in such a tensor, or behind it, is an alarm as anywhere.",
    check=check,
)
