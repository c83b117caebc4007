"""Logging in and out as a person does, in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Tab
from tests.security.conftest import Inside
from tests.server.records import catalogue, opening
from tests.server.tokens import cookie_at, create, revoke

EVERYWHERE = "() => JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}, location.href])"


@pytest.mark.slow
def test_in_and_out(inside: Callable[..., Inside], new_tab: Callable[..., Tab]) -> None:
    server = inside()
    assert server.post(opening(catalogue(1), "the-run")).status_code == 202
    db = server.app.state.settings.db
    agents, people = create(db, "agents", "ingest"), create(db, "people", "view")
    tab = new_tab(server.url, expected=["status of 40[13]"])
    page = tab.open("/")
    while not page.get_by_label("Token").count():  # until the server has heard of its first token
        page = tab.open("/")
    # The stream of changes is refused, too, which is no lost connection; it would ask again for as long as one looks.
    with page.expect_response("**/api/v1/live"), page.expect_response("**/api/v1/access"):
        page.reload()
    with page.expect_response("**/api/v1/live"):
        expect(page.get_by_test_id("connection-lost")).to_be_hidden()
    page.get_by_label("Token").fill(agents)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_test_id("error-state")).to_contain_text("for agents: it may send, and not look")
    page.get_by_label("Token").fill(f" {people} ")  # as pasted from a mail
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("the-run")).to_be_visible()
    name = cookie_at(server.url)
    cookie = next(each for each in tab.context.cookies() if each["name"] == name)
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert not any(secret in page.evaluate(EVERYWHERE) for secret in (people, cookie["value"], name))
    out = page.get_by_test_id("session").get_by_role("button", name="Log out")
    expect(out).to_have_attribute("title", "Logged in as people")
    out.click()
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.get_by_test_id("session")).to_be_empty()
    assert not [each for each in tab.context.cookies() if each["name"] == name]
    page.get_by_label("Token").fill(people)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("the-run")).to_be_visible()
    revoke(db, "people")
    while not page.get_by_label("Token").count():
        page.reload()
        tab.drawn()
    expect(page.get_by_text("the-run")).not_to_be_visible()
