"""What is wrong with a run: every rule over its evidence, findings that explain others joined with them.

A pure function of what is stored: asked again it says the same, however often it was asked before. But for a
hang, which is reported only while it lasts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

import msgspec

from rangewatch_server import rules
from rangewatch_server.core.deadline import TimeLimitReached
from rangewatch_server.query.reader import RunReader
from rangewatch_server.rules import Finding, Rule
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.importance import importance
from rangewatch_server.rules.rule import SEVERITIES, Remedy

logger = logging.getLogger("rangewatch.server")

MOST_FINDINGS = 100
"""Of one rule: more say no more."""

OF_ONE_RANK = frozenset({"replica_mismatch"})
"""Rules that explain others' findings only where they name a rank: replicas that were never meant to be alike, or of
which none is known to be right, explain nothing.
"""

AFTER = 64
"""Steps after what recovered in which it explains others: what begins later is of its own."""

OF_PLACE = frozenset({"dead_expert"})
"""Rules that explain only findings on tensors within what they are of, by `where`."""

NONFINITE = frozenset({"first_nonfinite", "loss_nonfinite"})
"""Rules whose findings explain only what had not begun before them, by its own `since_step`."""

SLACK = 8
"""Steps by which that may be too early: it is read from columns of so many."""

CONTAINED = "contained"
"""Subject of a finding on Inf that went nowhere."""


class Diagnosis(msgspec.Struct, frozen=True):
    """Steps [start, stop) that were examined, and what was found, most important first.

    `failed`: rules that could not be applied, with the reason: what they would have found is unknown.
    """

    start: int
    stop: int
    findings: tuple[Finding, ...]
    failed: dict[str, str]


LATE = "there was no time for it: the rules took as long as they may at once"

AIM_S = 0.13
"""Of processor time for all rules, each time that a live run is examined, in the mean. All of it has 0.15: of 1,024
ranks the run itself is opened in 0.013, and its findings are joined in 0.002.
"""

DEAR_S = 0.05
"""A rule that takes less is always applied."""

LEAST_SHARE = 1 / 3
"""Of the aim that is left to dear rules, however much the others take."""


class RulePace:
    """Which rules are due, where a live run is examined again and again: dear ones as often as the aim allows.

    Of a thousand ranks some rules read each rank's own records. What they found stands until they are applied again.
    A rule that the time limit ended comes last from then on, so that it keeps no other from being applied.
    """

    def __init__(self) -> None:
        self._spent_s: dict[str, float] = {}
        """By rule that has been applied, the last time."""
        self._findings: dict[str, tuple[Finding, ...]] = {}
        self._order: list[str] = []
        """Dear rules, the one that has waited longest first."""
        self._saved_s = 0.0
        self._thresholds: Any = None
        self._overran: set[str] = set()

    def due(self, chosen: Sequence[Rule], thresholds: Any) -> set[str]:
        """Names of the rules that are to be applied now: all the first time, and when they are set otherwise."""
        names = [rule.name for rule in chosen]
        if not self._spent_s or thresholds != self._thresholds:
            self._thresholds, self._order, self._saved_s = thresholds, [], 0.0
            return set(names)
        dear = [name for name in names if self._spent_s.get(name, 0.0) >= DEAR_S]
        cheap_s = sum(self._spent_s.get(name, 0.0) for name in names if name not in dear)
        self._order = [name for name in self._order if name in dear]
        self._order += [name for name in dear if name not in self._order]
        self._saved_s += max(AIM_S - cheap_s, LEAST_SHARE * AIM_S)
        due = set(names) - set(dear)
        while self._order and self._spent_s[self._order[0]] <= self._saved_s:
            name = self._order.pop(0)
            self._saved_s -= self._spent_s[name]
            due.add(name)
        return due

    def in_order(self, chosen: Sequence[Rule]) -> list[Rule]:
        """Those first of which nothing is known yet."""
        return sorted(chosen, key=lambda rule: (rule.name in self._overran, rule.name in self._findings))

    def overran(self, rule: Rule, spent_s: float) -> None:
        """The time limit was reached while it was applied, which took so much processor time."""
        self._overran.add(rule.name)
        self._spent_s[rule.name] = spent_s

    def is_known(self, rule: Rule) -> bool:
        """Whether it has been applied."""
        return rule.name in self._findings

    def standing(self, rule: Rule) -> tuple[Finding, ...]:
        """What it found when it was applied last."""
        return self._findings.get(rule.name, ())

    def applied(self, rule: Rule, findings: Sequence[Finding], spent_s: float) -> None:
        """It was, and took so much processor time."""
        self._findings[rule.name], self._spent_s[rule.name] = tuple(findings), spent_s


def diagnose(
    run: RunReader, stop: int | None = None, thresholds: Mapping[str, Mapping[str, Any]] | None = None,
    chosen: Sequence[Rule] = rules.ALL, pace: RulePace | None = None, *, is_whole: bool = False,
) -> Diagnosis:  # fmt: skip
    """Apply the rules to the steps before `stop`. `thresholds`: rule -> name -> value, where not the default; with
    `enabled` False the rule is left out. `pace`: of a run that is examined again and again; not `is_whole`: only those
    that are due by it.

    A rule that raises is left out and named. A reached time limit is raised; with a `pace` the rules that are left are
    taken as they stand, and those of which nothing is known yet are named.
    """
    evidence = Evidence(run, stop)
    due = {rule.name for rule in chosen} if pace is None or is_whole else pace.due(chosen, thresholds)
    findings: list[Finding] = []
    failed: dict[str, str] = {}
    is_late = False
    for rule in chosen if pace is None else pace.in_order(chosen):
        given = (thresholds or {}).get(rule.name, {})
        if given.get("enabled") is False:
            continue
        if pace is not None and (is_late or rule.name not in due):
            findings += pace.standing(rule)
            if not pace.is_known(rule):
                failed[rule.name] = LATE
            continue
        began_s = time.thread_time()
        try:
            found = [
                msgspec.structs.replace(
                    each, rule=rule.name, severity=each.severity or rule.severity, links=rule.links(run.id, each)
                )
                for each in islice(rule.check(evidence, rule.limits(given)), MOST_FINDINGS)
            ]
            findings += found
            if pace is not None:
                pace.applied(rule, found, time.thread_time() - began_s)
        except TimeLimitReached:
            if pace is None:
                raise
            is_late = True
            pace.overran(rule, time.thread_time() - began_s)
            findings += pace.standing(rule)
            if not pace.is_known(rule):
                failed[rule.name] = LATE
        except Exception as error:
            logger.exception("rule %s failed on run %d", rule.name, run.id)
            failed[rule.name] = f"{type(error).__name__}: {error}"
    explained = {rule.name: frozenset(rule.explains) for rule in chosen}
    led_to = {rule.name: frozenset(rule.leads_to) for rule in chosen}
    return Diagnosis(evidence.start, evidence.stop, tuple(joined(findings, explained, led_to)), failed)


def joined(
    findings: Sequence[Finding], explained: Mapping[str, frozenset[str]],
    led_to: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> list[Finding]:  # fmt: skip
    """Findings without those that another one explains, which are named in it; most important first.

    `explained`: rule -> the rules whose findings are consequences of its own. `led_to`: rule -> those whose findings
    follow from its own, and weigh more: they stay, right behind their root, which names them. What was said first, such
    as by an alert, so is first at the end of the run.
    """
    order = sorted(findings, key=_order)
    causes = {
        place: cause for place, each in enumerate(order) if (cause := _cause(order, place, each, explained)) is not None
    }
    left = [
        msgspec.structs.replace(each, consequences=each.consequences + _consequences(order, causes, place))
        for place, each in enumerate(order)
        if place not in causes
    ]
    return _roots_first(left, led_to)


def _roots_first(order: Sequence[Finding], led_to: Mapping[str, frozenset[str]]) -> list[Finding]:
    """Each root right before the first of what it led to."""
    root_of: dict[int, int] = {}
    for place, each in enumerate(order):
        leading = [at for at, other in enumerate(order) if _leads_to(other, each, led_to)]
        if leading:
            root_of[place] = leading[0]
    root_of = {place: _root(root_of, at) for place, at in root_of.items()}
    rooted: list[Finding] = []
    emitted: set[int] = set()
    for place, each in enumerate(order):
        at = root_of.get(place)
        if at is None:
            rooted += [each] if place not in root_of.values() else []
            continue
        root = order[at]
        if at not in emitted:
            emitted.add(at)
            led = [_led(root, order[other]) for other, its_root in root_of.items() if its_root == at]
            named = tuple(text for one in led for text in (one.summary, *one.consequences))
            rooted.append(msgspec.structs.replace(root, consequences=named + root.consequences))
        rooted.append(_led(root, each))
    return rooted


def _led(root: Finding, finding: Finding) -> Finding:
    """A finding that its root led to. Where its own cause is another, what it advises gives way to the root's advice,
    since mending a consequence leaves what made it; not to that of a root which is info, and may be meant."""
    text = f"It follows from what had begun before: {root.summary}"
    cause, own = (each.facts.get("cause_class") for each in (root, finding))
    is_meant = root.severity == "info" or not root.remedy
    if is_meant or not cause or not own or cause == own or root.rule == finding.rule:
        return msgspec.structs.replace(finding, evidence=(*finding.evidence, text))
    remedy = Remedy(f"Mend what it follows from first: {root.remedy[0].text}", root.remedy[0].code, text)
    clause = str(finding.facts.get("clause") or "")
    summary = finding.summary.replace(clause, "", 1) if clause else finding.summary
    return msgspec.structs.replace(finding, summary=summary, evidence=(text, *finding.evidence), remedy=(remedy,))


def _leads_to(root: Finding, finding: Finding, led_to: Mapping[str, frozenset[str]]) -> bool:
    """Whether `finding` is of a rule that the root's leads to, began when the root could be seen already and lasted, is
    of no other rank, and does not show a cause of its own. `is_state` of a root: it is no judgement of values, and was
    so when it began, however long it has to last before it is said.
    """
    if finding.rule not in led_to.get(root.rule, ()) or root.step is None or finding.step is None:
        return False
    is_worse = SEVERITIES.index(finding.severity) < SEVERITIES.index(root.severity)
    is_state = bool(root.facts.get("is_state", False))
    seen = int(root.facts.get("seen_step", root.step)) if is_worse and not is_state else root.step
    is_later = int(finding.facts.get("compared_step", _begin(finding, finding.step))) > seen
    of_another = finding.rank is not None and root.rank is not None and finding.rank != root.rank
    is_over = bool(root.facts.get("is_over", False))
    is_its_cause = "cause_class" in root.facts and root.facts["cause_class"] == finding.facts.get("cause_class")
    may_follow = is_its_cause or bool(finding.facts.get("of_magnitude", True))
    if "last_equal_step" in finding.facts:
        may_follow = _is_copy_of(root, finding)
    if root.rule == finding.rule:
        may_follow = is_its_cause and root.subject == CONTAINED and root.tensor == finding.tensor is not None
    return is_later and not of_another and not is_over and may_follow


def _is_copy_of(root: Finding, replicas: Finding) -> bool:
    """Whether replicas were alike before the root and are not since, in the very weight that had moved on the root's
    rank alone, by its cause: they are compared at few steps."""
    equal, where = replicas.facts["last_equal_step"], str(root.facts.get("where", ""))
    if root.rank is None or root.facts.get("cause_class") != "weight" or not replicas.tensor or not where:
        return False
    is_there = replicas.tensor == where or replicas.tensor.rpartition(".")[0] == where
    is_odd = root.rank not in replicas.facts["majority_ranks"]
    return is_there and is_odd and equal is not None and equal < (root.step or 0)


def _cause(
    order: Sequence[Finding], place: int, finding: Finding, explained: Mapping[str, frozenset[str]]
) -> int | None:
    """Place of the first finding that explains this one."""
    return next(
        (at for at, other in enumerate(order) if at != place and _explains(other, finding, explained[other.rule])), None
    )


def _explains(cause: Finding, finding: Finding, consequences: frozenset[str]) -> bool:
    """Whether `finding` is of a rule that the cause's explains, no worse, not earlier, and not of another rank.

    What nothing took over explains nothing.
    """
    is_dated = finding.step is not None and cause.step is not None
    is_earlier = is_dated and _latest(finding) < _begin(cause, cause.step or 0)
    of_another = finding.rank is not None and cause.rank is not None and finding.rank != cause.rank
    of_none = cause.rule in OF_ONE_RANK and cause.rank is None
    is_worse = SEVERITIES.index(finding.severity) < SEVERITIES.index(cause.severity)
    is_contained = cause.subject == CONTAINED
    if cause.rule in OF_PLACE and not (finding.tensor or "").startswith(f"{cause.facts.get('where', '')}."):
        return False
    if cause.rule in NONFINITE and finding.rule in consequences and not is_earlier:
        is_earlier = _is_apart(cause, finding)
    return finding.rule in consequences and not (is_worse or is_earlier or of_another or of_none or is_contained)


def _is_apart(cause: Finding, finding: Finding) -> bool:
    """Whether it had begun before the cause, or long after that was over."""
    begun = finding.facts.get("since_step", finding.step)
    over = cause.facts.get("recovered_step")
    if begun is None or cause.step is None:
        return False
    return begun < _begin(cause, cause.step) - SLACK or (over is not None and begun > over + AFTER)


def _latest(finding: Finding) -> int:
    """The last step at which it may have begun, where that is known to within some steps."""
    return int(finding.facts.get("latest_step", finding.step or 0))


def _begin(cause: Finding, step: int) -> int:
    """The step at which what explains it began, where that is before the finding's own."""
    return int(cause.facts.get("cause_step", step))


def _consequences(order: Sequence[Finding], causes: Mapping[int, int], place: int) -> tuple[str, ...]:
    return tuple(order[at].summary for at in causes if _root(causes, at) == place)


def _root(causes: Mapping[int, int], at: int) -> int:
    """The finding that explains this one in the end. Rules' `explains` make no circle: a test sees to it."""
    while at in causes:
        at = causes[at]
    return at


def _order(finding: Finding) -> tuple[tuple[bool, int, int, int, str], int, str]:
    """Sorts by importance; the rest makes the order the same each time."""
    return importance(finding), -1 if finding.rank is None else finding.rank, finding.subject
