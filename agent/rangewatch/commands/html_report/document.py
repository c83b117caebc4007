"""The file, piece by piece: what is wrong first, then the pictures, then the tables behind them.

How the file looks, in light and in dark, and the script that draws its figures in the one that is wanted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from html import escape
from importlib.resources import files
from typing import Any

from rangewatch.client import Run, ServerError, Unavailable, colours
from rangewatch.client.optional_imports import plotly_inline
from rangewatch.commands.html_report import pictures, sections
from rangewatch.commands.html_report.markup import paragraph, sentence
from rangewatch.core.version import VERSION

# Tokens of the pages, web/styles/style.css.
LIGHT = {
    "bg": "#fbfbfa", "panel": "#ffffff", "ink": "#1d2226", "muted": "#5f6a73", "line": "#e3e6e8", "bad": "#b3003c",
    "warning": "#985600",
}  # fmt: skip
DARK = {
    "bg": "#14171a", "panel": "#1b1f23", "ink": "#e7eaec", "muted": "#98a3ac", "line": "#2c3238", "bad": "#ff5d8f",
    "warning": "#f0b45a",
}  # fmt: skip
DARK_HEADROOM = ("#ffe3c2", "#ffb35c", "#f4791f", "#b5480f", "#5a3420", "#2a3641", "#24455f")
DARK_LINES = ("#6cb6ff", "#f0b45a", "#ead9f7", "#58d391", "#98a3ac", "#ff5d8f")
DARK_NONFINITE = "#ff2e93"
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""What the file may load: nothing."""


def style() -> str:
    """The style sheet: light, and dark where the reader's system is."""
    themes = f":root {{ {_tokens(LIGHT)} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {_tokens(DARK)} }} }}\n"
    return themes + _file("report.css")


def _tokens(values: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in values.items())


def looks() -> str:
    """Colours of the figures by theme, as JSON for `script`."""
    themes = {
        "light": _look(LIGHT, colours.HEADROOM, colours.LINES, colours.NONFINITE),
        "dark": _look(DARK, DARK_HEADROOM, DARK_LINES, DARK_NONFINITE),
    }
    return json.dumps(themes)


def script() -> str:
    """What draws the figures in them."""
    return _file("figures.js")


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _look(tokens: dict[str, str], headroom: tuple[str, ...], lines: tuple[str, ...], nonfinite: str) -> dict[str, Any]:
    top = colours.HEADROOM_BITS[-1]
    hot = [[bits / top, colour] for bits, colour in zip(colours.HEADROOM_BITS, headroom, strict=True)]
    cost = [[place / (len(headroom) - 1), colour] for place, colour in enumerate(reversed(headroom))]
    return {
        "ink": tokens["ink"], "line": tokens["line"], "lines": lines, "nonfinite": [[0, nonfinite], [1, nonfinite]],
        "scales": {"headroom": hot, "cost": cost},
    }  # fmt: skip


SECTIONS: dict[str, Callable[[Run, dict[str, Any]], Iterator[str]]] = {
    "Findings": sections.write_findings,
    "Over the steps": pictures.write,
    "Layers nearest to their limit": sections.write_layers,
    "Loss scale": sections.write_loss_scale,
    "Collectives": sections.write_collectives,
    "GPUs": sections.gpus,
    "Environment": sections.environment,
    "Ranks": sections.write_ranks,
}


def page(run: Run) -> Iterator[str]:
    """The file. Raises `ServerError`, and ImportError without plotly."""
    library = plotly_inline()
    facts = run.facts()
    title = escape(facts.get("title") or run.name)
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}: Rangewatch</title>\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<style>{style()}</style>\n<script>{library}</script></head><body><main>\n<h1>{title}</h1>\n"
    yield from _head(run, facts)
    yield from _contents()
    for place, (name, write) in enumerate(SECTIONS.items()):
        yield f'<h2 id="s{place}">{name}</h2>\n'
        yield from _section(run, facts, write)
    yield f'</main><script type="application/json" id="looks">{looks()}</script>\n'
    yield f"<script>{script()}</script></body></html>\n"


def _section(run: Run, facts: dict[str, Any], write: Callable[[Run, dict[str, Any]], Iterator[str]]) -> Iterator[str]:
    """A part that the server refuses is not the end of the others; without a server there is no report."""
    try:
        yield from write(run, facts)
    except Unavailable:
        raise
    except ServerError as error:
        yield paragraph(f"Not known: the server refused it ({error}).", "muted")


def _contents() -> Iterator[str]:
    links = "".join(f'<li><a href="#s{place}">{name}</a></li>' for place, name in enumerate(SECTIONS))
    yield f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n'


def _head(run: Run, facts: dict[str, Any]) -> Iterator[str]:
    said = datetime.fromtimestamp(facts["now_ns"] / 1e9, timezone.utc)
    steps = "no step" if facts["last_step"] is None else f"steps {facts['first_step']} to {facts['last_step']}"
    tags = f", tags {', '.join(facts['tags'])}" if facts.get("tags") else ""
    yield paragraph(
        f"Run {run.name}, {facts['state']}, {steps}, {facts['world_size']} ranks{tags}; as it was on "
        f"{said:%Y-%m-%d %H:%M} UTC, by Rangewatch {VERSION}.",
        "muted",
    )
    level = facts["verdict"]["level"]
    yield f'<section class="{escape(level)}"><p>{sentence(facts["verdict"]["parts"])}</p>'
    yield "".join(paragraph(facts[name]) for name in ("death", "hang") if facts.get(name))
    yield "</section>\n"
    if facts.get("note"):
        yield f"<section><pre>{escape(facts['note'])}</pre></section>\n"
