"""One verdict for the whole run: the gravest open finding is its sentence, the others are named, and green is calm."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch.wire.records import Event
from rangewatch_server import rules
from rangewatch_server.alerts.evaluator import UNKNOWN
from rangewatch_server.rules import Finding, Remedy
from rangewatch_server.rules.importance import LABELS, ORDER, importance
from rangewatch_server.store import alerts
from rangewatch_server.store.alerts import NewAlert
from rangewatch_server.views import overview, run_list, verdict
from tests.browser import hand_made_health as health
from tests.server.opened_store import Store
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)

BY_GRAVITY = (
    ("rank_died", "critical"), ("hang", "critical"), ("first_nonfinite", "critical"), ("gpu_health", "critical"),
    ("straggler", "warning"), ("gpu_health", "warning"), ("replica_mismatch", "critical"),
    ("loss_scale_collapse", "warning"), ("headroom_trend", "warning"), ("dead_activation", "warning"),
    ("rank_failed", "info"),
)  # fmt: skip


def finding(rule: str, severity: str, **more: Any) -> Finding:
    return Finding(**{"rule": rule, "severity": severity, "summary": f"{rule} it is.", "step": 5} | more)


@pytest.fixture
def calm(sqlite_url: str, open_store: Callable[[str], Store]) -> Store:
    store = open_store(sqlite_url)
    store.send(opening(KNOWN))
    store.send(batch(KNOWN, 0, range(10), {"amax": np.ones((3, 10))}))
    return store


def open_all(store: Store, *findings: Finding) -> None:
    new = [
        NewAlert(f"{each.rule} {each.severity}", each.rule, each.severity, each.step, msgspec.json.encode(each))
        for each in findings
    ]
    store.writer.work(lambda connection: [alerts.open_alert(connection, 1, each, 1) for each in new]).result(30)


def detail(store: Store) -> dict[str, Any]:
    with store.queries.read() as reader:
        found = reader.run(1)
        assert found is not None
        shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(overview.run_detail(found)))
        return shown


def text(shown: dict[str, Any]) -> str:
    return "".join(text for _, text in shown["verdict"]["parts"])


def test_the_gravest_is_the_verdict(calm: Store) -> None:
    """In the order in which a run needs help, whatever opened first; the others are named with their places."""
    findings = [finding(rule, severity, rank=1) for rule, severity in BY_GRAVITY]
    random.Random(1).shuffle(shuffled := list(findings))
    assert sorted(shuffled, key=importance) == findings
    open_all(calm, *shuffled)
    shown = detail(calm)["verdict"]
    assert (shown["level"], shown["parts"][0]) == ("critical", ["strong", "Rank died."])
    assert [each["label"] for each in shown["others"]][:2] == ["Hung: rank 1, step 5", "NaN or Inf: rank 1, step 5"]
    assert len(shown["others"]) + shown["more"] == len(findings) - 1
    assert all(each["path"].startswith("/runs/1/alerts?key=") for each in shown["others"])


def test_a_critical_finding_of_any_other_rule_comes_with_nonfinite_ones() -> None:
    explosion, straggler = finding("exploding_gradient", "critical"), finding("straggler", "warning")
    assert importance(explosion) < importance(straggler)
    assert importance(finding("exploding_gradient", "warning")) > importance(straggler)


def test_it_says_what_followed_and_what_to_try(calm: Store) -> None:
    where = {"rank": 0, "step": 7, "tensor": "blocks.1.ff"}
    open_all(calm, finding(
        "first_nonfinite", "critical", **where, summary="Step 7, rank 0: the output of blocks.1.ff held Inf.",
        evidence=("It was near its limit.",), consequences=("The loss is NaN.",),
        remedy=(Remedy("Use bfloat16.", "dtype = torch.bfloat16"), Remedy("Or another.")), links=(("Layers", "/l"),),
    ))  # fmt: skip
    shown = detail(calm)["verdict"]
    assert shown["parts"] == [
        ["strong", "NaN or Inf."], ["text", " "], ["text", "Step 7, rank 0: the output of "], ["code", "blocks.1.ff"],
        ["text", " held Inf."],
    ]  # fmt: skip
    assert shown["chain"] == ["It was near its limit.", "The loss is NaN."]
    assert shown["fix"] == {"text": "Use bfloat16.", "code": "dtype = torch.bfloat16"}
    assert [each["label"] for each in shown["links"]] == ["Step frames", "Layers", "All evidence"]
    assert shown["links"][0]["path"] == "/runs/1/step?step=7&rank=0"


def test_green_is_only_where_nothing_is_open_above_info(calm: Store) -> None:
    assert detail(calm)["verdict"]["level"] == "ok"
    open_all(calm, finding("inf_by_design", "info"))
    shown = detail(calm)
    assert shown["verdict"]["level"] == "ok" and text(shown).startswith("No overflow")
    assert [each["severity"] for each in shown["verdict"]["others"]] == ["info"]
    open_all(calm, finding("inf_by_design", "info"), finding("headroom_trend", "warning"))
    shown = detail(calm)
    assert shown["verdict"]["level"] == "warning" and text(shown).startswith("Headroom shrinks. ")


def test_where_all_is_far_from_its_limit_no_tensor_is_named(
    sqlite_url: str, open_store: Callable[[str], Store]
) -> None:
    """Of bfloat16 whose nearest tensor has 120 bits it says nothing which one that is."""
    known = catalogue(3, "bfloat16")
    store = open_store(sqlite_url)
    store.send(opening(known))
    store.send(batch(known, 0, range(10), {"amax": np.full((3, 10), 2.0**7)}))
    shown = detail(store)
    assert text(shown) == "No overflow; every tensor is more than 16 bits from the limit of its dtype."
    assert [each["path"] for each in shown["verdict"]["links"]] == ["/runs/1/layers"]
    store.send(batch(known, 1, range(10, 12), {"amax": np.full((3, 2), 2.0**119)}))
    assert text(detail(store)).startswith("No overflow; least headroom 9.0 bits (blocks.0.ff output, rank 0, step 10).")


def test_nan_is_shown_before_the_rules_have_seen_it(calm: Store) -> None:
    """A straggler that is open already does not hide it; what is graver does."""
    inf = {"amax": np.ones((3, 2)), "inf_count": np.array([[0, 0], [0, 1], [0, 0]])}
    calm.send(batch(KNOWN, 1, range(10, 12), inf))
    open_all(calm, finding("straggler", "warning"))
    shown = detail(calm)
    assert shown["verdict"]["level"] == "critical" and text(shown).startswith("NaN or Inf. Step 11, rank 0: the ")
    assert [each["label"] for each in shown["verdict"]["others"]] == ["Straggler: step 5"]
    open_all(calm, finding("straggler", "warning"), finding("hang", "critical"))
    assert text(detail(calm)) == "Hung. hang it is."


def test_a_hang_is_shown_before_the_rules_have_seen_it(calm: Store) -> None:
    """Nothing is green while ranks say that they wait."""
    for rank in range(1, health.RANKS):
        calm.send(opening(KNOWN, rank=rank, world_size=health.RANKS))
    for rank in range(health.RANKS):
        event = Event("hang", time.time_ns() - 60 * health.SECOND, 10, "no step", health.hang(rank, different=False))
        calm.send(batch(KNOWN, 1, range(10, 11), rank=rank, events=(event,)))
    shown = detail(calm)
    assert (shown["verdict"]["level"], shown["state"]) == ("critical", "hung")
    assert text(shown).startswith("Hung. Rank 2 has not joined all_reduce of 1 MiB float32")
    assert shown["verdict"]["findings"][0]["rule"] == "hang" and shown["verdict"]["links"][0]["path"] == "/runs/1/hang"
    open_all(calm, finding("rank_died", "critical"))
    assert text(detail(calm)).startswith("Rank died.")


def test_a_run_that_hangs_is_hung_and_not_live(calm: Store) -> None:
    assert detail(calm)["state"] == "live"
    open_all(calm, finding("hang", "critical"))
    assert detail(calm)["state"] == "hung"
    with calm.queries.read() as reader:
        (line,) = run_list.page(reader, run_list.Listing(10))["runs"]
    assert line["state"] == "hung"
    assert line["headline"] == {"level": "critical", "label": "Hung.", "summary": "hang it is."}


def test_a_list_has_the_same_headline(calm: Store) -> None:
    def headline() -> dict[str, str | None]:
        with calm.queries.read() as reader:
            shown: dict[str, str | None] = run_list.page(reader, run_list.Listing(10))["runs"][0]["headline"]
            return shown

    assert headline() == {"level": "ok", "label": None, "summary": None}
    open_all(calm, *(finding(rule, severity) for rule, severity in BY_GRAVITY[::-1]))
    assert headline() == {"level": "critical", "label": "Rank died.", "summary": "rank_died it is."}


def test_every_rule_has_a_label() -> None:
    assert set(LABELS) | {name for names in ORDER for name in names} <= {*rules.BY_NAME, UNKNOWN}
    for rule in rules.ALL:
        assert verdict.label(finding(rule.name, rule.severity)).endswith(".")
    assert verdict.label(finding("of_a_later_version", "warning")) == "Of a later version."


@pytest.mark.slow  # the rules are applied two seconds after
def test_alert_and_verdict_of_a_real_run_say_the_same(run: Run) -> None:
    """What the rules find is the sentence that the alert has."""
    inf = {"amax": np.ones((3, 80)), "inf_count": np.zeros((3, 80))}
    inf["inf_count"][1, 70:] = 1
    run.post(opening(KNOWN), batch(KNOWN, 0, range(80), inf))
    while not (opened := run.get("/alerts?state=open")["alerts"]):
        time.sleep(0.05)  # the test's own time limit ends it
    shown = run.get()
    assert text(shown) == f"NaN or Inf. {opened[0]['finding']['summary']}"
