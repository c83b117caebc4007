"""What is wrong with a run: every rule over its evidence, findings that explain others joined with them.

A pure function of what is stored: asked again it says the same, however often it was asked before. But for a
hang, which is told only while it lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rangewatch_server import rules
from rangewatch_server.core.deadline import TimeLimitReached
from rangewatch_server.query.reader import RunReader
from rangewatch_server.rules import Finding, Rule
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.rule import SEVERITIES

logger = logging.getLogger("rangewatch.server")

MOST_FINDINGS = 100
"""Of one rule: more say no more."""

OF_ONE_RANK = frozenset({"replica_mismatch"})
"""Rules that explain others' findings only where they name a rank: replicas that were never meant to be alike, or of
which none is known to be right, explain nothing.
"""


class Diagnosis(msgspec.Struct, frozen=True):
    """Steps [start, stop) that were looked at, and what was found, most important first.

    `failed`: rules that could not be applied, with the reason: what they would have found is unknown.
    """

    start: int
    stop: int
    findings: tuple[Finding, ...]
    failed: dict[str, str]


def diagnose(
    run: RunReader, stop: int | None = None, thresholds: Mapping[str, Mapping[str, Any]] | None = None,
    chosen: Sequence[Rule] = rules.ALL,
) -> Diagnosis:  # fmt: skip
    """Apply the rules to the steps before `stop`. `thresholds`: rule -> name -> value, where not the default; with
    `enabled` False the rule is left out.

    A rule that raises is left out and named; a reached time limit is raised.
    """
    evidence = Evidence(run, stop)
    found: list[Finding] = []
    failed: dict[str, str] = {}
    for rule in chosen:
        given = (thresholds or {}).get(rule.name, {})
        if given.get("enabled") is False:
            continue
        try:
            found += _of_rule(rule, evidence, given)
        except TimeLimitReached:
            raise
        except Exception as error:
            logger.exception("rule %s failed on run %d", rule.name, run.id)
            failed[rule.name] = f"{type(error).__name__}: {error}"
    explained = {rule.name: frozenset(rule.explains) for rule in chosen}
    return Diagnosis(evidence.start, evidence.stop, tuple(joined(found, explained)), failed)


def _of_rule(rule: Rule, evidence: Evidence, given: Mapping[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    for each in rule.check(evidence, rule.limits(given)):
        links, severity = rule.links(evidence.run.id, each), each.severity or rule.severity
        found.append(msgspec.structs.replace(each, rule=rule.name, severity=severity, links=links))
        if len(found) == MOST_FINDINGS:
            break
    return found


def joined(found: Sequence[Finding], explained: Mapping[str, frozenset[str]]) -> list[Finding]:
    """Findings without those that another one explains, which are named in it; most important first.

    `explained`: rule -> the rules whose findings are consequences of its own.
    """
    order = sorted(found, key=_importance)
    causes = {
        place: cause for place, each in enumerate(order) if (cause := _cause(order, place, each, explained)) is not None
    }
    return [
        msgspec.structs.replace(each, consequences=each.consequences + _consequences(order, causes, place))
        for place, each in enumerate(order)
        if place not in causes
    ]


def _cause(order: Sequence[Finding], place: int, found: Finding, explained: Mapping[str, frozenset[str]]) -> int | None:
    """Place of the first finding that explains this one."""
    return next(
        (at for at, other in enumerate(order) if at != place and _explains(other, found, explained[other.rule])), None
    )


def _explains(cause: Finding, found: Finding, consequences: frozenset[str]) -> bool:
    """Whether `found` is of a rule that the cause's explains, no worse, not earlier, and not of another rank."""
    is_earlier = found.step is not None and cause.step is not None and found.step < _begin(cause, cause.step)
    of_another = found.rank is not None and cause.rank is not None and found.rank != cause.rank
    of_none = cause.rule in OF_ONE_RANK and cause.rank is None
    is_worse = SEVERITIES.index(found.severity) < SEVERITIES.index(cause.severity)
    return found.rule in consequences and not (is_worse or is_earlier or of_another or of_none)


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


def _importance(found: Finding) -> tuple[int, int, str, int, str]:
    """Sorts by severity, then what was first; the rest makes the order the same each time."""
    step = found.step if found.step is not None else 2**63
    rank = found.rank if found.rank is not None else -1
    return SEVERITIES.index(found.severity), step, found.rule, rank, found.subject
