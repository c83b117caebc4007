"""What had happened just before NaN or Inf came: the learning rate had risen, or a checkpoint had been loaded.

A process that has been started again has loaded one. Known by its first step, and by the series `lr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from rangewatch_server.rules.nonfinite.case import HISTORY, Case
from rangewatch_server.rules.nonfinite.code_snippets import CHECKPOINT, lower_rate
from rangewatch_server.rules.nonfinite.origin import Origin
from rangewatch_server.rules.rule import Remedy

RATES = ("lr", "learning_rate")
"""Names under which it is logged; the second is that of Transformers' Trainer."""

RISE = 1.5
"""How many times as high as ever in the steps before it must be: a warm-up rises by less from its third step on."""

LEAST_BEFORE = 3
"""Values before it that are known."""

SOON = 8
"""Steps after it in which NaN or Inf is its doing."""

_NOT_OF_THE_RATE = ("masked", "eps", "written")


class Before(msgspec.Struct, frozen=True):
    """`kind`: "learning_rate" or "checkpoint". `clause` ends the summary; `reported` is a sentence. `facts`: see there;
    its `cause_step` is where it began.
    """

    kind: str
    clause: str
    reported: str
    remedy: Remedy
    facts: Mapping[str, Any]


def before(case: Case, origin: Origin) -> Before | None:
    """What explains it, if anything that is recorded does."""
    if case.is_restart and (loaded := _loaded(case, origin)) is not None:
        return loaded
    return None if origin.kind == "data" or origin.cause in _NOT_OF_THE_RATE else _risen(case)


def _loaded(case: Case, origin: Origin) -> Before | None:
    start = case.process_start
    if origin.cause == "state" and case.bad.step == start + 1:
        return _checkpoint(
            "",
            f"This process started at step {start}, one step before: the optimizer's state came with the checkpoint.",
        )
    if not case.is_loaded:
        return None
    first = "already at the first step after this process started"
    if origin.kind == "weight":
        reported = first.removeprefix("already") if case.entry.kind == "output" else f"; {first}"
        return _checkpoint(
            f"{reported}: the checkpoint that was loaded holds it",
            f"It was so {first}, step {start}: the checkpoint that was loaded holds it.",
        )
    if origin.kind == "forward" and case.weights is None and case.step_of_finite_weights is None:
        return _checkpoint(
            f"; {first}", f"It was so {first}, step {start}: the checkpoint that was loaded may hold it in its weights."
        )
    return None


def _checkpoint(clause: str, reported: str) -> Before:
    text = "Look which tensors of the checkpoint are not finite, and start from an older one in which all are."
    return Before("checkpoint", clause, reported, Remedy(text, CHECKPOINT, "it was so as soon as it was loaded"), {})


def _risen(case: Case) -> Before | None:
    for name in RATES:
        steps, rates = _rates(case, name)
        for at in reversed(range(LEAST_BEFORE, len(steps))):
            highest = rates[:at].max()
            if case.bad.step - steps[at] > SOON:
                break
            if highest > 0 and rates[at] >= RISE * highest:
                return _rise(case, int(steps[at]), float(rates[at - 1]), float(rates[at]))
    return None


def _rates(case: Case, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(n,) steps and values that were logged and could have had a part in it: an update is of its own step's rate."""
    start = max(case.evidence.start, case.bad.step - HISTORY)
    stop = case.bad.step + (case.entry.kind == "update")
    rates = case.evidence.series(name, start, stop, case.bad.rank)
    if not np.isfinite(rates).any():
        rates = case.evidence.series(name, start, stop)  # often rank 0 alone logs it
    known = np.flatnonzero(np.isfinite(rates))
    return start + known, rates[known]


def _rise(case: Case, step: int, low: float, high: float) -> Before:
    ago = case.bad.step - step
    when = f"{ago} step{'' if ago == 1 else 's'} before" if ago else "the same step"
    rose = f"the learning rate rose from {low:.3g} to {high:.3g} at step {step}, {when}"
    remedy = Remedy(
        f"Set the learning rate back to {low:.3g}, or raise it in small steps.", lower_rate(low / high),
        f"it had been {high / low:.3g} times as high for {ago} step{'' if ago == 1 else 's'}",
    )  # fmt: skip
    facts = {"lr_before": low, "lr": high, "cause_step": step}
    return Before("learning_rate", f"; {rose}", f"{rose[0].upper()}{rose[1:]}.", remedy, facts)
