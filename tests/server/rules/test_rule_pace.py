"""Which rules are due, where a run of many ranks is examined again and again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rangewatch_server.core.deadline import TimeLimitReached
from rangewatch_server.rules import Finding, Rule
from rangewatch_server.rules.diagnosis import AIM_S, RulePace, diagnose
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.rule import Thresholds
from tests.server.rules.conftest import Recording, tensor


def rule(name: str) -> Rule:
    return Rule(name=name, title=name, severity="info", explanation="", check=lambda evidence, limits: ())


CHEAP, DEAR, DEARER = rule("cheap"), rule("dear"), rule("dearer")
SPENT_S = {"cheap": 0.3 * AIM_S, "dear": AIM_S, "dearer": 3 * AIM_S}
CHOSEN = (CHEAP, DEAR, DEARER)


def examined(pace: RulePace, times: int, chosen: Iterable[Rule] = CHOSEN) -> list[set[str]]:
    """What is due each time."""
    each_time = []
    for _ in range(times):
        due = pace.due(list(chosen), {})
        for each in chosen:
            if each.name in due:
                pace.applied(each, (), SPENT_S[each.name])
        each_time.append(due)
    return each_time


def test_dear_rules_take_turns_and_the_mean_is_the_aim() -> None:
    first, *later = examined(RulePace(), 101)
    assert first == {"cheap", "dear", "dearer"}
    assert all("cheap" in due for due in later)
    spent_s = [sum(SPENT_S[name] for name in due) for due in later]
    assert 0.9 * AIM_S < sum(spent_s) / len(spent_s) <= AIM_S * 1.001
    counts = {name: sum(name in due for due in later) for name in SPENT_S}
    assert counts["dear"] >= counts["dearer"] >= 14 and counts["dear"] - counts["dearer"] <= 1


def test_a_dear_rule_is_applied_now_and_then_though_the_others_take_all() -> None:
    many = [rule(f"cheap {number}") for number in range(10)]
    SPENT_S.update({each.name: 0.3 * AIM_S for each in many})
    later = examined(RulePace(), 31, [*many, DEAR])[1:]
    assert sum("dear" in due for due in later) == 10


def test_cheap_rules_are_always_due() -> None:
    assert all(due == {"cheap"} for due in examined(RulePace(), 5, [CHEAP]))


def test_other_thresholds_and_new_rules_are_applied_at_once() -> None:
    pace = RulePace()
    examined(pace, 2)
    assert pace.due(CHOSEN, {"dear": {"steps": 2.0}}) == {"cheap", "dear", "dearer"}
    assert "new" in pace.due([*CHOSEN, rule("new")], {"dear": {"steps": 2.0}})


def test_what_it_found_stands_until_it_is_applied_again(recording: Recording) -> None:
    found: list[Finding] = [Finding(summary="first")]
    pace = RulePace()
    dear = Rule(name="dear", title="", severity="warning", explanation="", check=lambda evidence, limits: list(found))
    recording.write([tensor("a")], 8)

    def said() -> list[str]:
        with recording.run() as run:
            return [each.summary for each in diagnose(run, chosen=[dear], pace=pace).findings]

    assert said() == ["first"]
    pace.applied(dear, pace.standing(dear), 5 * AIM_S)
    found[:] = [Finding(summary="later")]
    assert [said()[0] for _ in range(6)] == ["first"] * 4 + ["later"] * 2


def test_a_reached_time_limit_leaves_the_rest_as_it_stands_and_names_what_is_not_known(recording: Recording) -> None:
    limits = ["slow"]

    def checked(name: str) -> Rule:
        def check(evidence: Evidence, thresholds: Thresholds) -> list[Finding]:
            if name in limits:
                raise TimeLimitReached(10.0)
            return [Finding(summary=name)]

        return Rule(name=name, title="", severity="warning", explanation="", check=check)

    chosen, pace = [checked("early"), checked("slow"), checked("late")], RulePace()
    recording.write([tensor("a")], 8)

    def said() -> tuple[set[str], set[str]]:
        with recording.run() as run:
            diagnosis = diagnose(run, chosen=chosen, pace=pace, is_whole=True)
        return {each.summary for each in diagnosis.findings}, set(diagnosis.failed)

    assert said() == ({"early"}, {"slow", "late"})
    assert said() == ({"early", "late"}, {"slow"}), "what is not known comes first, and what took too long last"
    limits[:] = ["early"]
    assert said() == ({"early", "late"}, {"slow"}), "what it found before stands"
    limits.clear()
    assert said() == ({"early", "late", "slow"}, set())
    with recording.run() as run, pytest.raises(TimeLimitReached):
        limits[:] = ["slow"]
        diagnose(run, chosen=chosen)
