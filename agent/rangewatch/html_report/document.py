"""The file, piece by piece: what is wrong first, then the pictures, then the tables behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from html import escape
from typing import Any

from rangewatch import __version__
from rangewatch.client import Run, ServerError, Unavailable
from rangewatch.client.optional import plotly_inline
from rangewatch.html_report import collectives, findings, layers, look, loss_scale, machines, pictures
from rangewatch.html_report.markup import paragraph, sentence

SECTIONS: dict[str, Callable[[Run, dict[str, Any]], Iterator[str]]] = {
    "Findings": findings.write,
    "Over the steps": pictures.write,
    "Layers nearest to their limit": layers.write,
    "Loss scale": loss_scale.write,
    "Collectives": collectives.write,
    "GPUs": machines.gpus,
    "Environment": machines.environment,
    "Ranks": machines.ranks,
}


def page(run: Run) -> Iterator[str]:
    """The file. Raises `ServerError`, and ImportError without plotly."""
    library = plotly_inline()
    facts = run.facts()
    title = escape(facts.get("title") or run.name)
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}: Rangewatch</title>\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{look.POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<style>{look.style()}</style>\n<script>{library}</script></head><body><main>\n<h1>{title}</h1>\n"
    yield from _head(run, facts)
    yield from _contents()
    for place, (name, write) in enumerate(SECTIONS.items()):
        yield f'<h2 id="s{place}">{name}</h2>\n'
        yield from _section(run, facts, write)
    yield f'</main><script type="application/json" id="looks">{look.looks()}</script>\n'
    yield f"<script>{look.script()}</script></body></html>\n"


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
        f"{said:%Y-%m-%d %H:%M} UTC, by Rangewatch {__version__}.",
        "muted",
    )
    level = facts["verdict"]["level"]
    yield f'<section class="{escape(level)}"><p>{sentence(facts["verdict"]["parts"])}</p>'
    yield "".join(paragraph(facts[name]) for name in ("death", "hang") if facts.get(name))
    yield "</section>\n"
    if facts.get("note"):
        yield f"<section><pre>{escape(facts['note'])}</pre></section>\n"
