"""What was said of a planted fault, held against what is known of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tests.faults.fault import Fault
from tests.faults.plain import LATER

Finding = dict[str, Any]
Ask = Callable[[int | None], dict[str, Any]]
"""The diagnosis of a run as it was before a step, or as it is now."""

LEAD = 5
"""Steps before an overflow by which a warning of it must come."""

WARNINGS = ("headroom_trend", "attention_logits")
LOOK_BACK = 80


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`is_right`: rule, rank, step and tensor are those that were planted, and it is named first. `extra`: rules of
    other findings that are critical or warnings. `lead`: steps by which the first warning came before; None where none
    did. `truth`: step and module that plain hooks saw.
    """

    is_right: bool
    is_class_right: bool
    extra: tuple[str, ...]
    truth: tuple[int, str] | None
    found: tuple[Finding, ...]

    def text(self) -> str:
        """For a test that fails."""
        return "\n".join([f"truth {self.truth}, extra {self.extra}", *map(str, self.found)])


def verdict(fault: Fault, truth: tuple[int, str] | None, ask: Ask) -> Verdict:
    """Of the whole run."""
    fault = _by_truth(fault, truth)
    answer = ask(None)
    assert not answer["failed"], answer["failed"]
    found = tuple(answer["findings"])
    loud = [each for each in found if each["severity"] != "info"]
    if not fault.rule:
        return Verdict(not loud, True, tuple(each["rule"] for each in loud), truth, found)
    mine = next((each for each in found if each["rule"] == fault.rule), None)
    others = tuple(each["rule"] for each in loud if each is not mine and each["rule"] not in fault.also)
    if mine is None:
        return Verdict(False, False, others, truth, found)
    is_first = mine is found[0] or any(each["rule"] in fault.also for each in found[: found.index(mine)])
    return Verdict(is_first and _is_there(fault, truth, mine), _is_so(fault, mine), others, truth, found)


def _by_truth(fault: Fault, truth: tuple[int, str] | None) -> Fault:
    """Where values grow by ever larger factors it is chance whether the loss is Inf first or an output: hooks know."""
    is_of_loss = fault.facts.get("origin") == "loss" and fault.step is None
    if not is_of_loss or truth is None or truth[1] == LATER:
        return fault
    return dataclasses.replace(fault, kind="output", facts={"origin": "forward", "cause": "range"})


def _is_there(fault: Fault, truth: tuple[int, str] | None, found: Finding) -> bool:
    step, tensor = fault.step, fault.tensor
    if fault.rule == "first_nonfinite" and step is None and truth is not None:
        step, tensor = truth[0], tensor if truth[1] == LATER else truth[1]
    steps = [step] if isinstance(step, int) else step
    is_then = steps is None or found["step"] in steps
    return is_then and found["rank"] == fault.rank and tensor in (None, found["tensor"]) and _is_kind(fault, found)


def _is_kind(fault: Fault, found: Finding) -> bool:
    return fault.kind in (None, found["kind"])


def _is_so(fault: Fault, found: Finding) -> bool:
    text = " ".join([found["summary"], *found["evidence"], *found["path"], *(str(each) for each in found["remedy"])])
    return fault.facts.items() <= found["facts"].items() and all(each in text for each in fault.words)


def warns(ask: Ask, stop: int) -> bool:
    """Whether there is a warning of an overflow when the steps before `stop` are known."""
    return any(each["rule"] in WARNINGS for each in ask(stop)["findings"])


def lead(ask: Ask, step: int, since: int = LOOK_BACK) -> int | None:
    """Steps by which the first warning came before `step`, which broke, of the `since` before; None where none did."""
    stops = range(max(1, step - since + 1), step + 1)
    return next((step - (stop - 1) for stop in stops if warns(ask, stop)), None)


def warned_ahead(ask: Ask, step: int) -> bool:
    """Whether a warning came `LEAD` steps before `step` or more. It asks a few times, the last one first."""
    return any(warns(ask, stop) for stop in range(step - LEAD + 1, max(0, step - LEAD - 16), -5))
