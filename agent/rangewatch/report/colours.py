"""The pages' colours, light theme, and which scale a heatmap is drawn in. Fixed, so that two figures compare by eye."""

from __future__ import annotations

from typing import Any

# The same as in web/charts/colours.js and web/styles/style.css, which a test holds them to.
HEADROOM_BITS = (0.0, 1.0, 2.0, 4.0, 6.4, 9.6, 16.0)
HEADROOM = ("#7a0403", "#c22403", "#f66b19", "#fdb863", "#f3e2c0", "#d9e6ee", "#a9c7dd")
SEQUENTIAL = ("#eef2f4", "#c9dde6", "#93bfd1", "#5a97b5", "#3a6d98", "#2f4776", "#231d4f")  # magnitudes and shares
DIFFERENCE = ((0.0, "#c22403"), (0.25, "#fdb863"), (0.5, "#e3e6e8"), (0.75, "#7fb0d8"), (1.0, "#0b62a8"))
CHANGE = (
    (0.0, "#123d7a"), (0.25, "#4a86c5"), (0.42, "#cfdfee"), (0.5, "#eff1f2"), (0.58, "#f6e2c4"), (0.75, "#e58a2c"),
    (1.0, "#7a2a04"),
)  # fmt: skip
SHARE = ((0.0, "#e3e6e8"), (5 / 6, "#0b62a8"), (1.0, "#1d2226"))
NONFINITE = "#e6007a"
LINES = ("#0b62a8", "#985600", "#4a1d66", "#187340", "#5f6a73", "#b3003c")
PHASES = {
    "data wait": "#c96a1b", "forward": "#7fb0d8", "backward": "#2f6fa8", "exposed comm": "#52256f",
    "optimizer": "#5f9c76", "other": "#b9c0c5",
}  # fmt: skip
LIMITS = {"max_finite": "#b3003c", "smallest_normal": "#985600", "smallest_subnormal": "#985600"}

Stops = list[tuple[float, str]]


def headroom() -> Stops:
    """Hot where there is least."""
    return [(bits / HEADROOM_BITS[-1], colour) for bits, colour in zip(HEADROOM_BITS, HEADROOM, strict=True)]


def cost() -> Stops:
    """The same colours for what is worse the more there is of it."""
    return [(place / (len(HEADROOM) - 1), colour) for place, colour in enumerate(reversed(HEADROOM))]


def scale_of(statistic: dict[str, Any] | None) -> tuple[str, Stops]:
    """The scale of a heatmap by its `meta.statistic`: `headroom`, `cost` or `own`, and its stops."""
    if statistic is None:
        return "cost", cost()
    if statistic["scale"] == "bits" and statistic["low"] >= 0:
        return "headroom", headroom()
    if statistic["scale"] == "bits":
        return "own", list(DIFFERENCE)
    if statistic["scale"] == "change":
        return "own", list(CHANGE)
    if statistic["scale"] == "log10":
        return "own", list(SHARE)
    return "own", [(place / (len(SEQUENTIAL) - 1), colour) for place, colour in enumerate(SEQUENTIAL)]


def unit(unit: str, statistic: dict[str, Any] | None) -> str:
    """What the colour bar counts."""
    if statistic is None:
        return unit
    scales = {"log2": "log2", "count": "log2(1 + n)", "fraction": "share", "log10": "log10", "ratio": "log2"}
    return f"{statistic['title']}, {scales.get(statistic['scale'], 'bits')}"
