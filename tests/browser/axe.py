"""What axe-core, the accessibility checker, finds in a page as it stands."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Page

SOURCE = Path(__file__).parents[2] / ".venv/node/node_modules/axe-core/axe.min.js"  # where the Makefile puts it
GRAVE = ["serious", "critical"]
FINDINGS = """async (grave) => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"], preload: false });
  const why = ({ any, all, none }) => [...any, ...all, ...none].map(({ message }) => message).join("; ");
  return violations.filter(({ impact }) => grave.includes(impact)).flatMap(({ id, impact, help, nodes }) =>
    nodes.map((node) => `${impact} ${id}: ${node.target.flat().join(" ")}: ${why(node) || help}`));
}"""


@cache
def source() -> str:
    """The checker itself; CI must have it."""
    if not SOURCE.exists() and not os.environ.get("CI"):
        pytest.skip("no axe-core here; `make test` installs it")
    return SOURCE.read_text()


def findings(page: Page) -> list[str]:
    """The serious and the critical ones: rule, element, what is wrong with it."""
    if page.evaluate("() => typeof axe === 'undefined'"):
        page.evaluate(source())
    found: list[str] = page.evaluate(FINDINGS, GRAVE)
    return found
