"""The generated pages are what `python -m tools.docs_tables` gives, and its words are of what is there."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

import pytest
from tools.docs_cli import cli_page
from tools.docs_events import EVENT_WORDS
from tools.docs_tables import PAGES

from rangewatch.wire.events import Details
from tests.docs.blocks import ROOT

TELLS = ("Event", "events.add", "_emit", "emit")
"""Who is given an event's kind first."""
STRUCTS = {each.__name__: each.KIND for each in Details.__subclasses__()}
"""Kinds of events by the struct of their details."""
OTHERWISE = {
    "fault", "dropped", "not_observed", "not_fused", "other_values", "no_last_words", "spool_merged", "linkcheck",
}  # fmt: skip
"""Kinds that the sources keep in a table or a constant."""


@pytest.fixture(autouse=True)
def no_setting_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults of commands are those of a shell without settings."""
    for name in [each for each in os.environ if each.startswith("RANGEWATCH_")]:
        monkeypatch.delenv(name)


def test_a_page_is_what_is_made() -> None:
    for name, make in PAGES.items():
        assert (ROOT / "docs" / name).read_text() == make(), f"{name}: python -m tools.docs_tables makes it anew"


def test_a_default_that_changes_makes_the_page_of_commands_untrue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANGEWATCH_PORT", "1234")
    assert (ROOT / "docs" / "cli.md").read_text() != cli_page()


def test_no_cell_breaks_a_table_of_commands() -> None:
    for line in cli_page().splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 3, line


def test_every_kind_of_event_is_told_of() -> None:
    sources = {path: path.read_text() for path in (ROOT / "agent").rglob("*.py")}
    reported = {
        kind for path, text in sources.items()
        if path.name != "shared_state.py"  # whose parts have kinds too
        for kind in _kinds(text)
    }  # fmt: skip
    assert len(reported) > 15
    assert reported | OTHERWISE == set(EVENT_WORDS)
    assert all(f'"{kind}"' in "".join(sources.values()) for kind in OTHERWISE)


def _kinds(text: str) -> Iterator[str]:
    """Kinds of the structs of details that are made; first arguments of calls that ship an event, where they are
    written out as a word.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and _name(node.func) in STRUCTS:
            yield STRUCTS[_name(node.func)]
        if isinstance(node, ast.Call) and _name(node.func) in TELLS and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.isidentifier():
                yield first.value


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return "events.add" if function.attr == "add" and _name(function.value).endswith("events") else function.attr
    return getattr(function, "id", "")
