"""How a scaler is set to change its scale, as the agent read it: docs/wire.md, event `scaler`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss_scale_causes import scale


class Settings(msgspec.Struct, frozen=True):
    """Of the scaler of one series; None for what is not known, as of scalers that do not say."""

    series: str
    growth_interval: float | None = None
    growth_factor: float | None = None
    backoff_factor: float | None = None

    @property
    def interval(self) -> int | None:
        """Clean steps after which it grows."""
        known = self.growth_interval
        return int(known) if known is not None and 1 <= known < 2**53 else None


def settings(evidence: Evidence, scaler: str) -> Settings:
    """The newest that the rank told whose scale is looked at, in its last process."""
    history = evidence.loss_scales
    for event in reversed(evidence.events("scaler")):
        if event.rank == history.rank and event.step >= max(history.begins, default=0):
            try:
                found = msgspec.convert(event.data, Settings)
            except msgspec.ValidationError:
                continue
            if found.series == scaler:
                return found
    return Settings(scaler)


def pace(told: Settings) -> Iterator[str]:
    """How it grows, where that is known."""
    if told.interval is not None and told.growth_factor is not None:
        yield f"It is multiplied by {told.growth_factor:g} after {told.interval} clean steps, its growth_interval."


def way_back(told: Settings, high: float, low: float) -> Iterator[str]:
    """What it takes until a scale that fell from `high` to `low` is what it was."""
    factor, back = told.growth_factor, told.backoff_factor
    if back is not None and back >= 1:
        yield f"Its backoff_factor is {back:g}: a skipped step does not lower it."
    elif factor is not None and factor > 1 and told.interval is not None and 0 < low < high:
        times = int(np.ceil(np.log2(high / low) / np.log2(factor)))
        steps = f"{times * told.interval} clean steps, {times} times its growth_interval of {told.interval}"
        yield f"To grow back to {scale(high)} it takes {steps}."


def why_standing(told: Settings, steps: int) -> str:
    """Why it has not grown in so many clean steps, as far as its settings tell."""
    if told.growth_factor is not None and told.growth_factor <= 1:
        return f"Its growth_factor is {told.growth_factor:g}: it never grows."
    if told.interval is None:
        return "Either growth_interval is large, or update() is given a value, or the scale is fixed."
    if told.interval > steps:
        return "So few clean steps are not enough for it to grow."
    return "So update() is given a value, or something else sets the scale back."
