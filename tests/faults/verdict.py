"""What was said of a planted fault, held against what is known of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
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


SEVERITIES = ("critical", "warning", "info")

ORIGINS = {
    "data": ("data",), "weight": ("weight",), "optimizer": ("optimizer",),
    "forward": ("forward_arithmetic",), "between": ("forward_arithmetic",), "loss": ("forward_arithmetic",),
    "backward": ("backward_arithmetic",), "reduction": ("communication",),
}  # fmt: skip
"""What a first NaN or Inf's `origin` says of its cause."""

SAID = {
    "mask": r"mask",
    "data": r"\bbatch|\bdata\b|\btargets?\b|\blabels?\b|the model's own|input of the (whole )?model",
    "learning_rate": r"learning rate|\blr (rose|had|was|is|of)",
    "weight": r"[Tt]he weights? .*(held|turned|jumped|written|changed)|initialis|was loaded",
    "optimizer": r"optimizer",
    "clip": r"clipp?(ing|ed)?\b.*(norm|divid|made)|norm of (zero|0)",
    "forward_arithmetic": r"code between|\blog\b|sqrt|division|divid|overflow|zeros?:",
    "backward_arithmetic": r"backward|[Gg]radients? (of|that|passing|explode)|gradient of .* rose",
    "loss_scale": r"loss scale|loss is not scaled",
    "communication": r"all_reduce|reduction over ranks|reduce_scatter|between ranks",
    "replicas": r"differs? (from|in)\b|ranks? .* alike|hold the same",
    "dead_units": r"\bdead\b|nothing but zeros|all zeros?|vanished",
    "no_gradient": r"no backward|no gradient",
    "eval": r"evaluat|eval\b|held out|no_grad",
    "crash": r"raise|died|exception|Error\b|failed",
}  # fmt: skip
"""Of which one must be in what a finding says (its summary, evidence, and its first remedy), for its cause."""

OF_NOW = (
    "vanishing_gradient", "update_ratio", "underflow_rising", "gradient_underflow", "unchanged_weights",
    "saturated_activation", "dead_activation", "headroom_trend", "attention_logits", "data_bound",
)  # fmt: skip
"""Rules that say a state: their step is that of the last reading."""

OF_A_READING = re.compile(r"^Step [\d,]+|[\d.e+-]+ times")
"""What of a state's summary is that of its last reading."""

EVERY = 25
"""Steps between two looks at a run while it goes on."""


@dataclasses.dataclass(frozen=True)
class Judged:
    """What was said of one of `cases.SCRIPTS`. `cause`, `place`, `same`: right or not, the last whether the first one
    at the end is that of the first look that had one. `against`: advice against the evidence. `said`, `first`: the
    first finding at the end and at that look, in a line. `early`: what was loud before the fault was there.
    """

    cause: bool
    place: bool
    against: tuple[str, ...]
    same: bool
    said: str
    first: str
    extra: tuple[str, ...]
    early: tuple[str, ...]


def judged(fault: Fault, ask: Ask) -> Judged:
    """By a look at every `EVERY`th step, and at the end."""
    end = ask(None)
    assert not end["failed"], end["failed"]
    found, onset = _loud(fault, end), _onset(fault)
    looks = [(stop, _loud(fault, ask(stop))) for stop in range(EVERY, end["stop"], EVERY)]
    early = tuple(f"{stop}: {each['rule']}" for stop, at in looks for each in at if stop <= onset)
    first = _first(at for stop, at in looks if stop > onset)
    root = found[0] if found else None
    extra = tuple(each["rule"] for each in found[1:] if each["rule"] not in (*fault.also, *fault.rules))
    advice = [remedy for each in found for remedy in remedies(each)]
    against = tuple(each for each in advice if any(re.search(wrong, each) for wrong in fault.against))
    return Judged(
        _is_cause(fault, root), _is_place(fault, root), against, first is None or is_same(first, root),
        _line(root), _line(first), extra, early[:3],
    )  # fmt: skip


def same_root(fault: Fault, ask: Ask) -> tuple[bool, str]:
    """Whether what a run is said to have at its end is what was said first, and what was."""
    end = ask(None)
    first = _first(_loud(fault, ask(stop)) for stop in range(EVERY, end["stop"], EVERY))
    found = _loud(fault, end)
    return first is None or is_same(first, found[0] if found else None), _line(first)


def _first(looks: Iterable[list[Finding]]) -> Finding | None:
    """What was said first, warnings of an overflow that is to come apart: those are meant to give way to it."""
    return next((found[0] for found in looks if found and found[0]["rule"] not in WARNINGS), None)


def _loud(fault: Fault, answer: dict[str, Any]) -> list[Finding]:
    """Findings above info, the most important first, and those of info where the fault is content with it."""
    least = SEVERITIES.index(fault.least)
    return [
        each
        for each in answer["findings"]
        if each["severity"] != "info" or (least == SEVERITIES.index("info") and each["rule"] in fault.rules)
    ]


def _onset(fault: Fault) -> int:
    if fault.step is None:
        return 0
    return fault.step if isinstance(fault.step, int) else fault.step.start


def _may_be_silent(fault: Fault) -> bool:
    """An evaluation that harms nothing but itself need not be mentioned."""
    return fault.cause == "eval" and "evaluation_mode" not in fault.rules


def _is_cause(fault: Fault, root: Finding | None) -> bool:
    if root is None:
        return not fault.rules or _may_be_silent(fault)
    if fault.rules and root["rule"] not in fault.rules:
        return False
    facts = root["facts"]
    if "cause_class" in facts:
        return bool(facts["cause_class"] == fault.cause)
    is_masked = facts.get("cause") == "masked"
    origins = ("mask",) if is_masked else ORIGINS.get(str(facts.get("origin")), ())
    if fault.cause in origins:
        return True
    first = root["remedy"][0] if root["remedy"] else {}
    text = " ".join([root["summary"], *root["evidence"], *(str(first.get(each, "")) for each in ("text", "because"))])
    # An origin that is something else is a claim, whatever stands beside it; what came before it may be named besides.
    if origins and fault.cause not in ("learning_rate", "clip", "data", "eval", "communication"):
        return False
    return bool(re.search(SAID[fault.cause], text)) if fault.cause else False


def _is_place(fault: Fault, root: Finding | None) -> bool:
    if root is None:
        return not fault.rules or _may_be_silent(fault)
    names = {root["tensor"] or "", str(root["facts"].get("where", ""))}
    is_there = fault.tensor is None or any(
        re.fullmatch(fault.tensor, each) or re.fullmatch(fault.tensor, each.rpartition(".")[0]) for each in names
    )
    steps = [fault.step] if isinstance(fault.step, int) else fault.step
    is_then = steps is None or root["step"] in steps
    return is_there and is_then and fault.rank in (None, root["rank"])


def is_same(first: Finding, root: Finding | None) -> bool:
    """Whether what was said first is still the first finding, or is said to follow from it."""
    is_state = first["rule"] in OF_NOW
    keys = ("rule", "tensor", "rank", *(() if is_state else ("step",)))
    said = (lambda text: OF_A_READING.sub("", text)) if is_state else str
    if root is not None and said(first["summary"]) in map(said, root["consequences"]):
        return True
    return root is not None and all(first[each] == root[each] for each in keys)


def remedies(finding: Finding) -> list[str]:
    """Its advice, each with the evidence it rests on."""
    return [f"{each['text']} ({each['because']})" for each in finding["remedy"]]


def _line(finding: Finding | None) -> str:
    if finding is None:
        return "nothing"
    origin = "/".join(str(finding["facts"][each]) for each in ("origin", "cause") if finding["facts"].get(each))
    remedy = finding["remedy"][0]["text"] if finding["remedy"] else ""
    return f"{finding['rule']}{f' ({origin})' if origin else ''}: {finding['summary']} | try: {remedy}"
