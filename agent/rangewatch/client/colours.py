"""The pages' colours, light theme, and which scale a heatmap is drawn in. Fixed, so that two figures compare by eye."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# The same as in web/styles/style.css, which a test holds them to.
HEADROOM_BITS = (0.0, 1.0, 2.0, 4.0, 6.4, 9.6, 16.0)
HEADROOM = ("#7a0403", "#c22403", "#f66b19", "#fdb863", "#f3e2c0", "#d9e6ee", "#a9c7dd")
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


def own(stops: Sequence[Sequence[Any]] | None) -> Stops:
    """What the server gave the figure, so that it reads alone; those of a cost without."""
    return [(float(at), str(colour)) for at, colour in stops] if stops else cost()


def unit(name: str, statistic: dict[str, Any] | None) -> str:
    """What the colour bar counts."""
    if statistic is None:
        return {"wait": "s", "difference": "bits more"}.get(name, "bits" if name == "headroom" else name)
    scale = {"log2": "log2", "count": "log2(1 + n)", "fraction": "share"}.get(statistic["scale"], "bits")
    return f"{statistic['title']}, {scale}"
