"""The file, piece by piece: what is wrong first, then the figures, then the tables behind them.

The Plotly.js that is in the file draws the figures, in light or in dark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from rangewatch.core.optional_imports import plotly_inline
from rangewatch.core.version import VERSION
from rangewatch.report import colours, sections
from rangewatch.report.markup import paragraph, sentence
from rangewatch.report.plotly_figures import decoded, of_answer
from rangewatch.report.source import Refused, Source

FIGURES = {
    "loss": "Loss", "loss_scale": "Loss scale", "timeline": "Least headroom by rank", "step_time": "Step time",
    "phases": "Phases of a step", "layers": "Headroom by layer, call order",
}  # fmt: skip
COLUMNS = 1_000
LINE_HEIGHT, ROW_HEIGHT, AROUND = 260, 12, 150
LEAST_HEIGHT, MOST_HEIGHT = 240, 640


def write_figures(source: Source, _: dict[str, Any]) -> Iterator[str]:
    drawn = 0
    for name, title in FIGURES.items():
        answer = source.get(f"/figures/{name}", {"columns": COLUMNS})
        if any(map(_has_points, answer["figure"]["data"])):  # not every run has a loss scale, or phases
            drawn += 1
            yield from _figure(answer, title)
    if drawn:
        yield paragraph(
            "Colours are bits of headroom, from none (dark red; in a dark page the palest) to 16 and more (blue), the "
            "same in all figures. NaN and Inf are magenta with a triangle above; blank cells are all zero, not "
            "observed or stale.",
            "muted",
        )
    else:
        yield paragraph("Nothing was recorded that can be drawn.")


def _figure(answer: dict[str, Any], title: str) -> Iterator[str]:
    figure = of_answer(answer, "")
    rows = len(answer["meta"].get("rows") or ())
    height = max(LEAST_HEIGHT, min(MOST_HEIGHT, rows * ROW_HEIGHT + AROUND)) if rows else LINE_HEIGHT
    figure.update_layout(title=None, height=height, margin={"t": 40, "b": 40, "l": 8 if rows else 64, "r": 16})
    figure.update_xaxes(title="step")
    figure.update_yaxes(automargin=True)
    note = answer["meta"].get("note") or ""
    drawn = figure.to_json().replace("<", "\\u003c")  # no name in it ends the script
    yield f"<h3>{escape(title)}</h3>\n"
    yield paragraph(note, "muted") if note else ""
    yield f'<section class="figure" role="figure" aria-label="{escape(title)}" style="min-height: {height}px">'
    yield f'<script type="application/json">{drawn}</script></section>\n'


def _has_points(sent: dict[str, Any]) -> bool:
    return bool(np.isfinite(decoded(sent["z"] if "z" in sent else sent["y"])).any())


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


def theme_json() -> str:
    """Colours of the figures by theme, as JSON for `script`."""
    themes = {
        "light": _theme(LIGHT, colours.HEADROOM, colours.LINES, colours.NONFINITE),
        "dark": _theme(DARK, DARK_HEADROOM, DARK_LINES, DARK_NONFINITE),
    }
    return json.dumps(themes)


def script() -> str:
    """What draws the figures in them."""
    return _file("figures.js")


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _theme(tokens: dict[str, str], headroom: tuple[str, ...], lines: tuple[str, ...], nonfinite: str) -> dict[str, Any]:
    top = colours.HEADROOM_BITS[-1]
    hot = [[bits / top, colour] for bits, colour in zip(colours.HEADROOM_BITS, headroom, strict=True)]
    cost = [[place / (len(headroom) - 1), colour] for place, colour in enumerate(reversed(headroom))]
    return {
        "ink": tokens["ink"], "line": tokens["line"], "lines": lines, "nonfinite": [[0, nonfinite], [1, nonfinite]],
        "scales": {"headroom": hot, "cost": cost},
    }  # fmt: skip


Write = Callable[[Source, dict[str, Any]], Iterator[str]]

SECTIONS: dict[str, Write] = {
    "Findings": sections.write_findings,
    "Over the steps": write_figures,
    "Layers nearest to their limit": sections.write_layers,
    "Loss scale": sections.write_loss_scale,
    "Collectives": sections.write_collectives,
    "GPUs": sections.gpus,
    "Environment": sections.environment,
    "Ranks": sections.write_ranks,
}


def page(source: Source) -> Iterator[str]:
    """The file. Raises what `source` does, but for `Refused`, and ImportError without plotly."""
    library = plotly_inline()
    details = source.get("")
    title = escape(details.get("title") or source.name)
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}: Rangewatch</title>\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<style>{style()}</style>\n<script>{library}</script></head><body><main>\n<h1>{title}</h1>\n"
    yield from _head(source, details)
    yield from _contents()
    for place, (name, write) in enumerate(SECTIONS.items()):
        yield f'<h2 id="s{place}">{name}</h2>\n'
        yield from _section(source, details, write)
    yield f'</main><script type="application/json" id="looks">{theme_json()}</script>\n'
    yield f"<script>{script()}</script></body></html>\n"


def _section(
    source: Source, details: dict[str, Any], write: Callable[[Source, dict[str, Any]], Iterator[str]]
) -> Iterator[str]:
    """A part that the server refuses is not the end of the others."""
    try:
        yield from write(source, details)
    except Refused as error:
        yield paragraph(f"Not known: the server refused it ({error}).", "muted")


def _contents() -> Iterator[str]:
    links = "".join(f'<li><a href="#s{place}">{name}</a></li>' for place, name in enumerate(SECTIONS))
    yield f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n'


def _head(source: Source, details: dict[str, Any]) -> Iterator[str]:
    exported = datetime.fromtimestamp(details["now_ns"] / 1e9, timezone.utc)
    steps = "no step" if details["last_step"] is None else f"steps {details['first_step']} to {details['last_step']}"
    world_size = details["world_size"]
    ranks = "1 rank" if world_size == 1 else f"{world_size:,} ranks"
    tags = f", tags {', '.join(details['tags'])}" if details.get("tags") else ""
    yield paragraph(
        f"Run {source.name}, {details['state']}, {steps}, {ranks}{tags}; as it was on "
        f"{exported:%Y-%m-%d %H:%M} UTC, by Rangewatch {VERSION}.",
        "muted",
    )
    verdict = details["verdict"]
    yield f'<section class="{escape(verdict["level"])}"><p>{sentence(verdict["parts"])}</p>'
    yield "".join(paragraph(text) for text in verdict.get("chain", ()))
    if verdict.get("fix"):
        yield paragraph(f"Try: {verdict['fix']['text']}")
    yield "".join(paragraph(details[name]) for name in ("death", "hang") if details.get(name))
    yield "</section>\n"
    if details.get("note"):
        yield f"<section><pre>{escape(details['note'])}</pre></section>\n"
