"""The generated pages are what `python -m tools.docs_tables` gives, and its words are of what is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.docs_events import EVENT_WORDS
from tools.docs_tables import PAGES

from tests.docs.blocks import ROOT

TELLS = ("Event", "add_event", "_emit", "emit", "_emit_event", "_reported", "reported")
"""Who is given an event's kind first."""
OTHERWISE = {
    "fault", "dropped", "not_observed", "not_fused", "other_values", "no_last_words", "spool_merged", "linkcheck",
}  # fmt: skip
"""Kinds that the sources keep in a table or a constant."""


def test_a_page_is_what_is_made() -> None:
    for name, make in PAGES.items():
        assert (ROOT / "docs" / name).read_text() == make(), f"{name}: python -m tools.docs_tables makes it anew"


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
    """First arguments of calls that tell an event, where they are written out as a word."""
    if not any(f"{name}(" in text for name in TELLS):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and _name(node.func) in TELLS and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.isidentifier():
                yield first.value


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
