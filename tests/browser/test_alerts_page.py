"""The page of alerts: what stands, seen, silenced and told; thresholds set in it. Names in findings are text."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Route, expect

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, TensorEntry
from tests.browser.conftest import Tab
from tests.browser.hand_made import MARKUP, Runs, accept, number, overflow, wait_for_alert
from tests.server.process import Server
from tests.server.records import batch, opening


def overflowing(server: Server, name: str) -> int:
    """A run whose only layer is Inf from step 30 on, once its alert stands."""
    overflow(server, name)
    return wait_for_alert(server, number(server, name))


def test_an_alert_is_seen_and_silenced(tab: Tab, runs: Runs) -> None:
    run = wait_for_alert(runs.server, runs.alerted)
    page = tab.page
    page.goto(f"{tab.address}/runs/{run}/alerts")
    alert = page.get_by_test_id("alerts-open").locator("[data-severity=critical]")
    expect(alert).to_contain_text(f"Step 30, rank 0: the output of {MARKUP[0]} is the first to hold Inf")
    assert page.locator("main img, main script, main b, [onerror]").count() == 0
    expect(alert.locator(".alert-what strong")).to_have_text("NaN or Inf.")
    expect(alert.locator(".alert-line")).to_have_count(2)
    expect(alert.locator("pre")).not_to_be_visible()
    alert.locator("summary").click()
    expect(alert.locator("pre").first).to_be_visible()
    alert.get_by_role("button", name="Acknowledge").click()
    expect(alert).to_contain_text("acknowledged by")
    alert.get_by_role("button", name="Silence for an hour").click()
    expect(page.get_by_test_id("silences")).to_contain_text("NaN or Inf for")
    page.get_by_role("button", name="Unsilence").click()
    expect(page.get_by_test_id("silences")).not_to_be_visible()
    expect(page.get_by_test_id("targets")).to_contain_text("No targets")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("() => document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    tab.visit(f"/runs/{runs.states}/alerts?key=987654")
    expect(page.get_by_text("There is no alert 987654 in this run, or no longer.")).to_be_visible()


@pytest.mark.slow
def test_a_rule_is_switched_off_for_the_run(tab: Tab, runs: Runs) -> None:
    run = overflowing(runs.server, "alerts off")
    page = tab.page
    page.goto(f"{tab.address}/runs/{run}/alerts")
    page.get_by_text("Thresholds of the rules").click()
    page.get_by_label("NaN or Inf: on", exact=True).uncheck()
    page.get_by_role("button", name="Set for this run").click()
    expect(page.get_by_test_id("thresholds")).to_contain_text("Saved")
    expect(page.get_by_test_id("alerts-over")).to_contain_text("resolved", timeout=30_000)
    expect(page.get_by_test_id("alerts-open")).not_to_be_visible()


@pytest.mark.slow
def test_another_tools_thresholds_fill_the_form(tab: Tab, runs: Runs) -> None:
    run = overflowing(runs.server, "alerts preset")
    page = tab.page
    page.goto(f"{tab.address}/runs/{run}/alerts")
    page.get_by_text("Thresholds of the rules").click()
    page.get_by_label("Use the thresholds of").select_option("msprobe")
    expect(page.get_by_test_id("thresholds")).to_contain_text("AnomalyTurbulence")
    factor = page.locator("input[name='exploding_gradient.factor']")
    expect(factor).to_have_value("1.5")
    page.get_by_role("button", name="Set for this run").click()
    expect(page.get_by_test_id("thresholds")).to_contain_text("Saved")
    assert runs.server.get(f"/api/v1/runs/{run}/thresholds")["run"] == {"exploding_gradient": {"factor": 1.5}}
    page.get_by_label("Use the thresholds of").select_option("")
    expect(factor).not_to_have_value("1.5")


@pytest.mark.slow
def test_without_alerts_it_says_so(tab: Tab, runs: Runs) -> None:
    known = Catalogue(statistics.ALL, (TensorEntry("a", "output", 0, "float32", (4, 8), 0, "Linear"),))
    accept(runs.server, opening(known, run="calm"))
    accept(runs.server, batch(known, 0, range(3), run="calm"))
    tab.page.goto(f"{tab.address}/runs/{number(runs.server, 'calm')}/alerts")
    expect(tab.page.get_by_test_id("empty-state")).to_contain_text("No alert has been raised")
    expect(tab.page.get_by_test_id("verdict")).to_contain_text("No open alert")


def test_alerts_are_listed_whether_or_not_the_rules_can_be_applied_in_time(tab: Tab, runs: Runs) -> None:
    run = wait_for_alert(runs.server, runs.alerted)
    tab.expected.append("503")
    too_long = {"error": "reading took longer than 10 s", "code": "too_slow"}
    tab.page.route("**/diagnosis*", lambda route: route.fulfill(status=503, json=too_long))
    page = tab.open(f"/runs/{run}/alerts")
    expect(page.get_by_test_id("alerts-open")).to_contain_text("is the first to hold Inf")
    expect(page.get_by_test_id("verdict")).to_contain_text("Whether every rule could be applied is not known yet.")
    expect(page.get_by_test_id("error-state")).to_have_count(0)


@pytest.mark.slow
def test_an_old_alert_that_stands_is_listed_and_older_ones_can_be_asked_for(tab: Tab, runs: Runs) -> None:
    run = wait_for_alert(runs.server, runs.marked)
    one = runs.server.get(f"/api/v1/runs/{run}/alerts")["alerts"][0]
    many = [one | {"id": number, "resolved_ns": None if number == 1 else 5} for number in range(450, 0, -1)]

    def serve(route: Route) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(route.request.url).query).items()}
        route.fulfill(json=answer(many, asked))

    page = tab.page
    page.route(f"**/api/v1/runs/{run}/alerts?*", serve)
    page.goto(f"{tab.address}/runs/{run}/alerts?key=3")
    expect(page.get_by_test_id("verdict")).to_contain_text("1 open alert.")
    expect(page.get_by_test_id("alerts-open").locator("#alert-1")).to_be_visible()
    expect(page.get_by_test_id("alerts-named").locator("#alert-3")).to_be_focused()
    over = page.get_by_test_id("alerts-over")
    expect(over.get_by_role("heading", name="Resolved (the newest 200)")).to_be_visible()
    over.get_by_role("button", name="Earlier alerts").click()
    expect(over.locator(".alert")).to_have_count(400)
    over.get_by_role("button", name="Earlier alerts").click()
    expect(over.locator(".alert")).to_have_count(449)
    expect(over.get_by_role("button", name="Earlier alerts")).to_be_hidden()
    expect(page.get_by_test_id("alerts-named")).to_be_hidden()


def answer(many: list[dict[str, Any]], asked: dict[str, str]) -> dict[str, Any]:
    """As the server would list them."""
    states = {"open": [True], "over": [False]}.get(asked["state"], [True, False])
    mine = [each for each in many if (each["resolved_ns"] is None) in states]
    mine = [each for each in mine if each["id"] < int(asked.get("before", 10**9))]
    shown = mine[: int(asked["limit"])]
    return {"now_ns": 10**18, "alerts": shown, "next": shown[-1]["id"] if len(mine) > len(shown) else None}
