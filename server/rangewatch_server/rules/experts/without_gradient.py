"""Experts of a router that nobody counts tokens of, such as one written by hand: those that get no gradient at all,
step after step, while others of their list do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import numpy as np

from rangewatch.wire.events import Optimizers
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.recent import Array, tensors_of

LASTING = 64
"""Steps in a row without a gradient."""

FEWEST = 3
"""Experts of a list."""

USUAL = 0.5
"""Part of these steps in which the median of the others must get one: where each is chosen seldom, chance does it."""

_EXPERTS = re.compile("expert", re.IGNORECASE)
_ROUTER = re.compile("gate|gating|rout|switch|dispatch", re.IGNORECASE)


class Idle(msgspec.Struct, frozen=True):
    """Of the list of experts `fqn`, which are `count`, those of the numbers `experts` have no gradient any more.
    `parameters`: of each of these.
    """

    fqn: str
    count: int
    experts: tuple[int, ...]
    parameters: dict[int, list[str]]


def idle_experts(evidence: Evidence) -> list[Idle]:
    """Of each list that has some, in call order."""
    if evidence.whole_stop - evidence.start < LASTING:
        return []
    entries = evidence.tensors.entries
    recorded = {entries[each].fqn: each for each in tensors_of(evidence, "grad").tolist()}
    amax = evidence.window(("amax",)).columns["amax"]
    idle: list[Idle | None] = []
    for fqn, experts in expert_lists(evidence).items():
        idle.append(_idle(fqn, experts, recorded, amax))
    return [each for each in idle if each is not None]


def expert_lists(evidence: Evidence) -> dict[str, dict[int, list[str]]]:
    """Name of each list that looks like one of experts -> number in it -> parameters, in call order: it is called so,
    or lies beside a router of as many."""
    entries = evidence.tensors.entries
    recorded = {entries[each].fqn: each for each in tensors_of(evidence, "grad").tolist()}
    unreached = [fqn for _, known in evidence.details(Optimizers)[-1:] for fqn in known.unreached]
    lists = _lists([*recorded, *(fqn for fqn in unreached if fqn not in recorded)])
    routers = {
        (fqn.rpartition(".")[0].rpartition(".")[0], int(entries[each].shape[0]))
        for fqn, each in recorded.items()
        if entries[each].shape and _ROUTER.search(fqn.rpartition(".")[0].rpartition(".")[2])
    }
    return {
        fqn: experts
        for fqn, experts in lists.items()
        if len(experts) >= FEWEST
        and ((fqn.rpartition(".")[0], len(experts)) in routers or _EXPERTS.search(fqn.rpartition(".")[2]))
    }


def _lists(names: list[str]) -> dict[str, dict[int, list[str]]]:
    """Name of a list of modules -> number in it -> parameters; of lists in lists the parameters count for each."""
    lists: dict[str, dict[int, list[str]]] = {}
    for fqn in names:
        parts = fqn.split(".")
        for at in range(1, len(parts) - 1):
            if parts[at].isdecimal():
                lists.setdefault(".".join(parts[:at]), {}).setdefault(int(parts[at]), []).append(fqn)
    return lists


def _idle(fqn: str, experts: Mapping[int, list[str]], recorded: Mapping[str, int], amax: Array) -> Idle | None:
    """None where none is idle, or the others do not get gradients in most steps."""
    nothing = np.zeros(amax.shape[1], bool)
    has = {
        number: np.any([amax[recorded[each]] > 0 if each in recorded else nothing for each in names], axis=0)
        for number, names in sorted(experts.items())
    }
    dead = [number for number, row in has.items() if not row[-LASTING:].any()]
    others = [float(row[-LASTING:].mean()) for number, row in has.items() if number not in dead]
    if not dead or not others or np.median(others) < USUAL:
        return None
    return Idle(fqn, len(experts), tuple(dead), {number: experts[number] for number in dead})


def gives_zeros(evidence: Evidence, of: Idle, step: int) -> bool | None:
    """Whether all that these experts give is 0 since `step`, and was not before, though rows reach them: as many as it
    happens to be, or inputs that are not 0. None: not known, as of a buffer that is ever as large, and full of zeros
    where no row reaches the expert."""
    low, stop = max(evidence.start, step - LASTING), min(evidence.whole_stop, step + LASTING)
    was, now = slice(0, step - low), slice(step - low + 1, None)
    outputs = _rows_of(evidence, of, "output")
    if stop - step < FEWEST or len(outputs) < len(of.experts):
        return False
    numel, amax = _read(evidence, outputs, low, stop)
    # A loop over experts calls those that no row reaches, too, with no row.
    is_called, had = ((numel[:, now] > 0).mean(axis=1) >= USUAL).all(), amax[:, was].any(axis=1).all()
    if not is_called or not had or amax[:, now].any():
        return False
    if (numel[:, now].max(axis=1) > numel[:, now].min(axis=1)).all():
        return True
    inputs = _rows_of(evidence, of, "input")
    if len(inputs) < len(of.experts):
        return None
    return bool((_read(evidence, inputs, low, stop)[1][:, now] > 0).any(axis=1).all())


def _rows_of(evidence: Evidence, of: Idle, kind: str) -> Array:
    """Of each of these experts that has one its first tensor of the kind."""
    entries, names = evidence.tensors.entries, {f"{of.fqn}.{number}" for number in of.experts}
    known: dict[str, int] = {}
    for each in tensors_of(evidence, kind).tolist():
        if entries[each].fqn in names:
            known.setdefault(entries[each].fqn, each)
    return np.array(sorted(known.values()), np.int64)


def _read(evidence: Evidence, tensors: Array, low: int, stop: int) -> tuple[Array, Array]:
    """(n, steps) elements, and largest magnitudes."""
    names = ("numel", "amax")
    columns = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, names, tensors).columns
    numel, amax = (np.asarray(columns[each], np.float64) for each in names)
    return numel, amax


def since(evidence: Evidence, of: Idle) -> tuple[int, str]:
    """Since which step the one of them that has had no gradient for the longest has had none, and a parameter of it."""
    recorded = {evidence.tensors.entries[each].fqn: each for each in tensors_of(evidence, "grad").tolist()}
    known = {number: [recorded[each] for each in names if each in recorded] for number, names in of.parameters.items()}
    first, step = _longest(evidence, {number: np.array(each, np.int64) for number, each in known.items()})
    names = of.parameters[first]
    return step, next((each for each in names if each in recorded), names[0])


def _longest(evidence: Evidence, tensors: Mapping[int, Array]) -> tuple[int, int]:
    """The expert that has had no gradient for the longest, of {number: its gradients}, and the step behind the last one
    other than 0; the run's first where it never had one. One read a level, for all of them.
    """
    start, stop = evidence.start, evidence.whole_stop
    if bare := [number for number, each in tensors.items() if not len(each)]:
        return min(bare), start
    left = sorted(tensors)
    for level in range(level_for(stop - start, SCAN_COLUMNS), -1, -1):
        every = np.unique(np.concatenate([tensors[number] for number in left]))
        block = evidence.run.slice(RANGES, list(evidence.ranks), level, start, stop, ("amax",), every)
        there = np.asarray(block.columns["amax"], np.float64) > 0
        rows = {number: there[np.searchsorted(every, tensors[number])].any(axis=0) for number in left}
        last = {number: int(np.flatnonzero(row)[-1]) if row.any() else -1 for number, row in rows.items()}
        first = min(last.values())
        left = [number for number in left if last[number] == first]
        if first < 0:
            return left[0], start
        size = FANOUT**level
        column = block.first + first
        start, stop = max(start, column * size), min(stop, (column + 1) * size)
    return left[0], stop
