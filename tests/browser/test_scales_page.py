"""The Scales page: which operands are cast, whether their scales fit, and what is unknown."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Tab
from tests.browser.hand_made import Runs, accept, number
from tests.server.scale_batches import send


@pytest.mark.slow
def test_states_of_scales(runs: Runs, tab: Tab) -> None:
    bits = np.zeros((6, 20))
    bits[0, 7:] = 2.0
    bits[3, 5:] = -6.0
    send(partial(accept, runs.server), bits, age=np.where(np.arange(20) >= 5, 12.0, 1.0), run="scales")
    page = tab.open(f"/runs/{number(runs.server, 'scales')}/scales")
    expect(page.get_by_test_id("verdict")).to_contain_text("the scale of 1 operand was too small")
    table = page.get_by_test_id("scales-operands")
    expect(table.get_by_role("row", name="blocks.0.up input")).to_contain_text("scale too small")
    expect(table.get_by_role("row", name="blocks.0.down input")).to_contain_text("entry 12 of 256")
    expect(table.get_by_role("row", name="head input")).to_contain_text("unknown")
    expect(page.get_by_test_id("verdict")).to_contain_text("nothing is read: no cast of it was seen")
    expect(page.get_by_test_id("figure-layers")).to_be_visible()
    table.get_by_role("link", name="blocks.0.up input").click()
    page.wait_for_url("**/tensor?*")
