"""The numbers and colours that reach the screen are those of the run: against arithmetic, not against the server."""

from __future__ import annotations

import base64
import json
import math
from typing import Literal

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser import drawn, hand_made
from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs

Theme = Literal["light", "dark"]
SCALE_BITS = (0, 1, 2, 4, 6.4, 9.6, 16)


def expected_bits(rank: int) -> np.ndarray:
    """Headroom by its definition, log2(max / amax), of every finite cell; NaN elsewhere."""
    states, amax = hand_made.states(rank), hand_made.amax(rank)
    shown = np.isin(states, (hand_made.VALUE, hand_made.SATURATED))
    return np.array(
        [
            [min(16.0, math.log2(hand_made.LIMIT / each)) if ok else math.nan for each, ok in zip(*row, strict=True)]
            for row in zip(amax, shown, strict=True)
        ]
    )


def check_layers(page: Page, rank: int) -> None:
    """The drawn heatmap is the run's headroom, cell by cell."""
    found, wanted = drawn.bits(page, "layers"), expected_bits(rank)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_layers_heatmap_draws_the_headroom_of_each_cell(tab: Tab, runs: Runs) -> None:
    check_layers(tab.open(f"/runs/{runs.states}/layers?rank=0"), 0)
    check_layers(tab.open(f"/runs/{runs.states}/layers?rank=1"), 1)


def test_one_wrong_cell_is_noticed(tab: Tab, runs: Runs) -> None:
    def spoil(route: Route) -> None:
        answer = route.fetch()
        body = json.loads(answer.text())
        z = body["figure"]["data"][0]["z"]
        cells = np.frombuffer(base64.b64decode(z["bdata"]), "<f4").copy()
        cells[5 * hand_made.STEPS + 7] += 0.01
        z["bdata"] = base64.b64encode(cells.tobytes()).decode()
        route.fulfill(response=answer, json=body)

    tab.page.route("**/figures/layers*", spoil)
    page = tab.open(f"/runs/{runs.states}/layers?rank=0")
    with pytest.raises(AssertionError, match="Mismatched elements: 1 /"):
        check_layers(page, 0)


def test_the_overview_draws_each_ranks_least_headroom_and_a_loss_scale_that_falls_at_skipped_steps(
    tab: Tab, runs: Runs
) -> None:
    page = tab.open(f"/runs/{runs.states}")
    found = drawn.bits(page, "timeline")
    for rank in (0, 1):
        states = hand_made.states(rank)
        observed = np.isin(states, (hand_made.VALUE, hand_made.SATURATED)).any(axis=0)
        bad = np.isin(states, (hand_made.INF, hand_made.NAN)).any(axis=0)
        least = np.nanmin(np.where(np.isnan(expected_bits(rank)), np.inf, expected_bits(rank)), axis=0)
        np.testing.assert_allclose(found[rank], np.where(observed & ~bad, least, np.nan), atol=1e-5)
    stairs, skipped = page.locator(drawn.selector("loss_scale")).evaluate(
        "(figure) => figure._fullData.map(({ x, y }) => [Array.from(x), Array.from(y)])"
    )
    assert stairs[0] == list(range(hand_made.STEPS))
    assert [stairs[1][step] for step in (0, 120, 121, 130, 131, 199)] == [65536, 65536, 32768, 32768, 16384, 16384]
    assert skipped[0] == [121, 131]


def scale_colour(page: Page, bits: float) -> np.ndarray:
    """The scale's colour at some bits, mixed here from colours.js."""
    stops = np.array([drawn.headroom_colour(page, i) for i in range(7)])
    return np.array([np.interp(bits, SCALE_BITS, stops[:, channel]) for channel in range(3)])


def switch_theme(page: Page, theme: Theme) -> None:
    """As the system does it at dusk: the figures are drawn anew."""
    before = page.locator(drawn.selector("layers")).get_attribute("data-ready")
    page.emulate_media(color_scheme=theme)
    if theme == "dark":
        expect(page.locator(drawn.selector("layers"))).not_to_have_attribute("data-ready", before or "")


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_a_cells_pixels_show_its_headroom_or_its_state(tab: Tab, runs: Runs, theme: Theme) -> None:
    page = tab.open(f"/runs/{runs.states}/layers?rank=0")
    switch_theme(page, theme)
    screen, bits = drawn.pixels(page, "layers"), expected_bits(0)
    for tensor, step in ((0, 20), (0, 190), (1, 5), (2, 100), (4, 50), (7, 160), (11, 149), (11, 150), (11, 151)):
        x, y, _, _ = drawn.place(page, "layers", step, tensor)
        assert drawn.near(screen[round(y), round(x)], scale_colour(page, bits[tensor, step]), 4), (tensor, step)
    bad, ink, hatch = (drawn.colour(page, name) for name in ("nonfinite", "nonfinite-ink", "hatch"))
    worst = drawn.headroom_colour(page, 0)

    def share(wanted: np.ndarray, step: float, row: int, reach: int) -> float:
        x, y, *_ = drawn.place(page, "layers", step, row)
        return float(drawn.near(drawn.around(screen, x, y, reach), wanted).mean())

    assert share(worst, 50, 0, 6) > 0.9, "saturated is the scale's end"
    assert share(bad, 120, 3, 1) + share(ink, 120, 3, 1) > 0.4, "Inf"
    assert share(bad, 130, 4, 1) + share(ink, 130, 4, 1) > 0.4, "NaN"
    assert 0.02 < share(hatch, 150, 5, 8) < 0.3, "all zero is dotted"
    assert 0.05 < share(hatch, 90, 1, 8) < 0.5, "not observed is hatched"
    assert share(hatch, 50, 7, 8) == 0, "a plain value is plain"
    tab.open(f"/runs/{runs.states}/layers?rank=1")
    screen = drawn.pixels(page, "layers")
    assert 0.1 < share(hatch, 175, 6, 8) < 0.6, "stale is ruled"
    assert share(hatch, 50, 6, 8) == 0


def test_the_step_page_says_each_state_in_words(tab: Tab, runs: Runs) -> None:
    page = tab.open(f"/runs/{runs.states}/step?step=120&rank=0")
    first = page.get_by_test_id("first-nonfinite")
    expect(first).to_contain_text("0 NaN, 1 Inf of 32")
    rows = page.locator("tr[data-state]")
    states = hand_made.states(0)[:, 120]
    words = {hand_made.VALUE: "value", hand_made.INF: "inf", hand_made.ZERO: "zero"}
    assert [row.get_attribute("data-state") for row in rows.all()] == [words[state] for state in states]
    expect(rows.nth(5)).to_contain_text("all zero")
    expect(rows.nth(0)).to_contain_text(f"{expected_bits(0)[0, 120]:.1f} bits")
    expect(rows.nth(0)).to_contain_text("not measured")  # amin: never a 0 that nobody measured
    tab.visit(f"/runs/{runs.states}/step?step=50&rank=0")
    expect(page.locator("tr[data-state=saturated]")).to_contain_text("saturated: 0.13 bits below the float16 limit")
    tab.visit(f"/runs/{runs.states}/step?step=90&rank=0")
    expect(page.locator("tr[data-state]")).to_have_count(hand_made.TENSORS - 1)  # not observed is not a frame
