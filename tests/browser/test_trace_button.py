"""Trace on demand: asked for on a page, followed rank by rank, taken back, refused in words, opened once it is here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from rangewatch.records import Event
from tests.browser.conftest import Tab
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening
from tests.server.tokens import bearer, create

KNOWN = catalogue(3)
MARKUP = "<img src=x onerror=alert(1)>"


class Agent:
    """A rank by hand: sends a step at a time, and what it says of commands."""

    def __init__(self, server: Server, rank: int, token: str = "") -> None:
        self.server, self.rank, self.headers, self.step = server, rank, bearer(token) if token else {}, -1
        self._post(opening(KNOWN, rank=rank, world_size=2))

    def send(self, **said: Any) -> list[Any]:
        """The commands of the reply."""
        self.step += 1
        events = (Event("command", 1, self.step, "", {"id": 1, **said}),) if said else ()
        one = range(self.step, self.step + 1)
        return self._post(batch(KNOWN, self.step, one, rank=self.rank, events=events))

    def _post(self, message: Any) -> list[Any]:
        answer = self.server.post(message, **self.headers)
        assert answer.status_code == 202, answer.text
        commands: list[Any] = answer.json()["commands"]
        return commands


@pytest.fixture
def live(start_empty: Callable[..., Server]) -> tuple[Server, list[Agent]]:
    """A server with a run of two ranks that have done a step."""
    server = start_empty()
    agents = [Agent(server, rank) for rank in range(2)]
    for agent in agents:
        agent.send()
    return server, agents


def patient(tab: Tab) -> Tab:
    """Each test has a server of its own, of which nothing is cached: on a busy machine that takes a while to load."""
    tab.context.set_default_timeout(60_000)
    return tab


def ask(page: Page, **fields: str) -> None:
    page.get_by_role("button", name="Trace the next steps").click()
    for label, text in fields.items():
        page.get_by_label(re.compile(f"^{label}")).fill(text)
    page.get_by_role("button", name="Trace", exact=True).click()


def traces(page: Page) -> Locator:
    return page.get_by_test_id("trace")


def test_a_trace_is_followed_until_it_is_here(live: tuple[Server, list[Agent]], new_tab: Callable[..., Tab]) -> None:
    server, (first, second) = live
    page = patient(new_tab(server.url)).open("/runs/1")
    ask(page, Steps="2", Modules="blocks.*, norm")
    expect(page.get_by_test_id("trace-panel")).to_contain_text("Asked. Each rank begins at its next step.")
    expect(traces(page)).to_contain_text("Trace of 2 steps of blocks.*, norm, all ranks: under way.")
    expect(traces(page)).to_contain_text("ranks 0 and 1: has not answered")
    wanted = {"id": 1, "kind": "trace", "steps": 2, "modules": ["blocks.*", "norm"]}
    assert first.send() == [wanted]
    first.send(state="accepted", first_step=3, last_step=4)
    expect(traces(page)).to_contain_text("rank 0: tracing, steps 3-4; 0 of 2 here")
    first.send()
    expect(traces(page)).to_contain_text("rank 0: tracing, steps 3-4; 1 of 2 here")
    page.reload()  # the server knows of it, not the page
    expect(traces(page)).to_contain_text("rank 1: has not answered")
    first.send(state="done", first_step=3, last_step=4)
    second.send(state="refused", reason=MARKUP)
    expect(traces(page)).to_contain_text("here.")
    expect(traces(page)).to_contain_text(f"rank 1: refused: {MARKUP}")
    page.get_by_role("link", name="Open step 3, rank 0").click()
    page.wait_for_url("**/step?step=3&rank=0")
    expect(page.get_by_role("heading", name="Step 3, rank 0")).to_be_visible()
    expect(traces(page)).to_contain_text("here.")  # the Step page has the same panel


@pytest.mark.slow
def test_it_is_said_when_it_has_come(live: tuple[Server, list[Agent]], new_tab: Callable[..., Tab]) -> None:
    server, (first, _) = live
    page = patient(new_tab(server.url)).open("/runs/1/step")
    ask(page, Steps="1", Ranks="0")
    expect(traces(page)).to_contain_text("rank 0: has not answered")
    expect(traces(page)).not_to_contain_text("rank 1")
    first.send(state="done", first_step=1, last_step=1)
    expect(page.locator("#said")).to_have_text("The trace is here: step 1, rank 0.")


def test_a_trace_is_taken_back_with_the_keyboard(live: tuple[Server, list[Agent]], new_tab: Callable[..., Tab]) -> None:
    server, _ = live
    page = patient(new_tab(server.url)).open("/runs/1")
    button = page.get_by_role("button", name="Trace the next steps")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label(re.compile("^Steps"))).to_be_focused()
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # sends the form as it is: three steps
    withdraw = page.get_by_role("button", name="Withdraw")
    withdraw.focus()
    page.keyboard.press("Enter")
    expect(traces(page)).to_contain_text("Trace of 3 steps, all ranks, asked just now: taken back.")
    expect(withdraw).to_have_count(0)
    assert {each["state"] for each in server.get("/api/v1/runs/1/commands/1")["states"]} == {"withdrawn"}


def test_what_cannot_be_asked_is_refused_in_words(
    live: tuple[Server, list[Agent]], new_tab: Callable[..., Tab]
) -> None:
    server, _ = live
    page = patient(new_tab(server.url, expected=["status of 4(04|09)"])).open("/runs/1")
    said = page.get_by_test_id("trace-panel").get_by_role("status")
    ask(page, Ranks="one")
    expect(said).to_have_text('"one" is no rank: write ranks as 0, 2-5.')
    page.get_by_label(re.compile("^Ranks")).fill("7")
    page.get_by_role("button", name="Trace", exact=True).click()
    expect(said).to_have_text("The server did not take it: run 1 has no rank 7.")
    page.get_by_label(re.compile("^Ranks")).fill("")
    page.get_by_label(re.compile("^Steps")).fill("1001")
    page.get_by_role("button", name="Trace", exact=True).click()
    assert server.get("/api/v1/runs/1/commands")["commands"] == [], "the form does not send more than 1000 steps"


@pytest.mark.slow
def test_a_run_that_has_ended_cannot_be_traced(live: tuple[Server, list[Agent]], new_tab: Callable[..., Tab]) -> None:
    server, agents = live
    page = patient(new_tab(server.url, expected=["status of 409"])).open("/runs/1")
    page.get_by_role("button", name="Trace the next steps").click()
    for agent in agents:
        goodbye = Event("finished", 1, agent.step, "")
        agent.server.post(batch(KNOWN, agent.step + 1, range(0), rank=agent.rank, events=(goodbye,)))
    expect(page.locator("#page .badge")).to_have_attribute("data-state", "finished", timeout=20_000)
    expect(page.get_by_test_id("trace-panel")).not_to_be_visible()


@pytest.mark.slow
def test_who_may_only_look_is_told_so(
    tmp_path: Path, new_tab: Callable[..., Tab], start_empty: Callable[..., Server]
) -> None:
    db = str(tmp_path / "own.db")
    sender, viewer = create(db, "agents", "ingest"), create(db, "ana", "view")
    server = start_empty()
    Agent(server, 0, sender).send()
    page = patient(new_tab(server.url, expected=["status of 401"])).open("/")
    page.get_by_label("Token").fill(viewer)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="run", exact=True).click()
    button = page.get_by_role("button", name="Trace the next steps")
    expect(button).to_be_disabled()
    expect(page.get_by_test_id("trace-panel")).to_contain_text("Asking for a trace needs the role admin.")
