"""Trace on demand: asked for on a page, followed rank by rank, taken back, refused in words, opened once it is here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from rangewatch.wire.records import Event
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening
from tests.server.tokens import bearer, create

KNOWN = catalogue(3)
MARKUP = "<img src=x onerror=alert(1)>"


class Agent:
    """A rank by hand: sends a step at a time, and what it says of commands."""

    def __init__(self, server: Server, run: str, rank: int, token: str = "") -> None:
        self.server, self.run, self.rank, self.headers, self.step = (
            server,
            run,
            rank,
            bearer(token) if token else {},
            -1,
        )
        self._post(opening(KNOWN, run, rank, world_size=2))

    def send(self, of: int = 0, **said: Any) -> list[Any]:
        """The commands of the reply. `of` is the number of the command that it speaks of."""
        self.step += 1
        events = (Event("command", 1, self.step, "", {"id": of, **said}),) if said else ()
        one = range(self.step, self.step + 1)
        return self._post(batch(KNOWN, self.step, one, run=self.run, rank=self.rank, events=events))

    def _post(self, message: Any) -> list[Any]:
        answer = self.server.post(message, **self.headers)
        assert answer.status_code == 202, answer.text
        commands: list[Any] = answer.json()["commands"]
        return commands


@pytest.fixture
def traced(runs: Runs, request: pytest.FixtureRequest) -> tuple[Run, list[Agent]]:
    """A run of two ranks that have done a step."""
    run = Run(runs.server, request.node.name)
    agents = [Agent(runs.server, run.name, rank) for rank in range(2)]
    for agent in agents:
        agent.send()
    return run, agents


def ask(page: Page, **fields: str) -> None:
    page.get_by_role("button", name="Trace the next steps").click()
    for label, text in fields.items():
        page.get_by_test_id("trace-panel").get_by_label(re.compile(f"^{label}")).fill(text)
    page.get_by_role("button", name="Trace", exact=True).click()


def asked(run: Run) -> int:
    """The number of the only command of the run."""
    [one] = run.get("/commands")["commands"]
    number: int = one["id"]
    return number


def traces(page: Page) -> Locator:
    return page.get_by_test_id("trace")


@pytest.mark.slow
def test_a_trace_is_followed_until_it_has_arrived(traced: tuple[Run, list[Agent]], tab: Tab) -> None:
    run, (first, second) = traced
    page = tab.open(f"/runs/{run.id}")
    ask(page, Steps="2", Modules="blocks.*, norm")
    expect(page.get_by_test_id("trace-panel")).to_contain_text("Asked. Each rank begins at its next step.")
    expect(traces(page)).to_contain_text("Trace of 2 steps of blocks.*, norm, all ranks: under way.")
    expect(traces(page)).to_contain_text("ranks 0 and 1: has not answered")
    command = asked(run)
    wanted = {"id": command, "kind": "trace", "steps": 2, "modules": ["blocks.*", "norm"]}
    assert first.send() == [wanted]
    first.send(command, state="accepted", first_step=3, last_step=4)
    expect(traces(page)).to_contain_text("rank 0: tracing, steps 3-4; 0 of 2 arrived")
    first.send()
    expect(traces(page)).to_contain_text("rank 0: tracing, steps 3-4; 1 of 2 arrived")
    page.reload()  # the server knows of it, not the page
    expect(traces(page)).to_contain_text("rank 1: has not answered")
    first.send(command, state="done", first_step=3, last_step=4)
    second.send(command, state="refused", reason=MARKUP)
    expect(traces(page)).to_contain_text("complete.")
    expect(traces(page)).to_contain_text(f"rank 1: refused: {MARKUP}")
    page.get_by_role("link", name="Open step 3, rank 0").click()
    page.wait_for_url("**/step?step=3&rank=0")
    expect(page.get_by_role("heading", name="Step 3, rank 0")).to_be_visible()
    expect(traces(page)).to_contain_text("complete.")  # the Step page has the same panel


@pytest.mark.slow
def test_it_is_said_when_it_has_come(traced: tuple[Run, list[Agent]], tab: Tab) -> None:
    run, (first, _) = traced
    page = tab.open(f"/runs/{run.id}/step")
    ask(page, Steps="1", Ranks="0")
    expect(traces(page)).to_contain_text("rank 0: has not answered")
    expect(traces(page)).not_to_contain_text("rank 1")
    first.send(asked(run), state="done", first_step=1, last_step=1)
    expect(page.locator("#notice")).to_have_text("The trace has arrived: step 1, rank 0.")


@pytest.mark.slow
def test_a_trace_is_taken_back_with_the_keyboard(traced: tuple[Run, list[Agent]], tab: Tab) -> None:
    run, _ = traced
    page = tab.open(f"/runs/{run.id}")
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
    expect(traces(page)).to_contain_text("Trace of 3 steps, all ranks, asked just now: withdrawn.")
    expect(withdraw).to_have_count(0)
    assert {each["state"] for each in run.get(f"/commands/{asked(run)}")["states"]} == {"withdrawn"}


@pytest.mark.slow
def test_what_cannot_be_asked_is_refused_in_words(traced: tuple[Run, list[Agent]], tab: Tab) -> None:
    run, _ = traced
    tab.expected.append("status of 4(04|09)")
    page = tab.open(f"/runs/{run.id}")
    said = page.get_by_test_id("trace-panel").get_by_role("status")
    ask(page, Ranks="one")
    expect(said).to_have_text('"one" is no rank: write ranks as 0, 2-5.')
    page.get_by_role("textbox", name=re.compile("^Ranks")).fill("7")
    page.get_by_role("button", name="Trace", exact=True).click()
    expect(said).to_have_text(f"The server did not take it: run {run.id} has no rank 7.")
    page.get_by_role("textbox", name=re.compile("^Ranks")).fill("")
    page.get_by_label(re.compile("^Steps")).fill("1001")
    page.get_by_role("button", name="Trace", exact=True).click()
    assert run.get("/commands")["commands"] == [], "the form does not send more than 1000 steps"


@pytest.mark.slow
def test_a_run_that_has_ended_cannot_be_traced(traced: tuple[Run, list[Agent]], tab: Tab) -> None:
    run, agents = traced
    tab.expected.append("status of 409")
    page = tab.open(f"/runs/{run.id}")
    page.get_by_role("button", name="Trace the next steps").click()
    for agent in agents:
        goodbye = Event("finished", 1, agent.step, "")
        agent.server.post(batch(KNOWN, agent.step + 1, range(0), run=run.name, rank=agent.rank, events=(goodbye,)))
    expect(page.locator("#page .badge")).to_have_attribute("data-state", "finished", timeout=20_000)
    expect(page.get_by_test_id("trace-panel")).not_to_be_visible()


@pytest.mark.slow
def test_who_may_only_look_is_told_so(
    tmp_path: Path, new_tab: Callable[..., Tab], start_server: Callable[..., Server]
) -> None:
    db = str(tmp_path / "server.db")
    sender, viewer = create(db, "agents", "ingest"), create(db, "ana", "view")
    server = start_server()
    Agent(server, "run", 0, sender).send()
    page = new_tab(server.url, expected=["status of 401"]).open("/")
    page.get_by_label("Token").fill(viewer)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="run", exact=True).click()
    button = page.get_by_role("button", name="Trace the next steps")
    expect(button).to_be_disabled()
    expect(page.get_by_test_id("trace-panel")).to_contain_text("Asking for a trace needs the role admin.")
