"""docs/diagnosis.md is what the shelf and its reports are; `python -m tests.faults.make_docs` makes it anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rangewatch_server import rules
from tests.faults.examples import ALL, Example
from tests.faults.make_docs import PAGE, page, report


def test_the_page_is_the_shelf() -> None:
    """But for the reports, which have tests of their own."""
    text = PAGE.read_text()
    reports = re.findall(r"```text\n(.*?)\n```", text, re.DOTALL)
    in_order = [each for rule in rules.ALL for each in ALL if each.rule == rule.name]
    assert len(reports) == len(in_order)
    assert text == page(dict(zip(in_order, reports, strict=True)))


def test_every_rule_has_a_report() -> None:
    assert {each.rule for each in ALL} == set(rules.BY_NAME)


@pytest.mark.parametrize("example", ALL, ids=[each.name for each in ALL])
def test_a_report_is_what_is_said(example: Example, tmp_path: Path) -> None:
    said = report(example, tmp_path)
    assert f"\n```text\n{said}\n```\n" in PAGE.read_text()
    assert "  why " in said
