"""How the file looks, in light and in dark, and the script that draws its figures in the one that is wanted."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from rangewatch.client import colours

# Tokens of the pages, web/style.css.
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
