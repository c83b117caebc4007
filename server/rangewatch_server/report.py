"""The classic text report of one rank and step: frames in call order, up to the first bad one.

The layout follows what engineers know from Transformers' `DebugUnderflowOverflow`: `abs min`, `abs max`, then what.
"""

from __future__ import annotations

from typing import Any

FRAMES = 21  # tensors, as many as Transformers keeps frames
MAX_FRAMES = 10_000


def text(
    run: str, rank: int, step: int, frames: list[dict[str, Any]], first_nonfinite: int | None, count: int = FRAMES
) -> str:
    """The report; up to `count` frames ending at the first non-finite one, or the last when all are finite."""
    end = len(frames) if first_nonfinite is None else first_nonfinite + 1
    shown = frames[max(0, end - count) : end]
    head = f"Detected inf/nan during step={step}" if first_nonfinite is not None else f"No inf/nan in step={step}"
    lines = [f"{head} (run {run}, rank {rank})", f"Last {len(shown)} frames:", "abs min  abs max  metadata"]
    if not all(frame["full"] for frame in shown):
        lines.insert(2, "(- : abs min was not measured at this step)")
    module = None
    for frame in shown:
        if (frame["fqn"], frame["module"]) != module:
            module = (frame["fqn"], frame["module"])
            lines.append(f"                  {frame['fqn'] or '(model)'} {frame['module']}")
        index = f"[{frame['index']}]" if frame["index"] else ""
        lines.append(f"{_low(frame)} {_high(frame)} {frame['kind']}{index}")
    return "\n".join(lines)


def _low(frame: dict[str, Any]) -> str:
    if not frame["full"]:
        return "       -"
    zero = bool(frame["zero_fraction"])
    return f"{0.0:8.2e}" if zero else "     nan" if frame["amin"] is None else f"{frame['amin']:8.2e}"


def _high(frame: dict[str, Any]) -> str:
    if frame["nan_count"]:
        return "     nan"
    if frame["inf_count"]:
        return "     inf"
    return "     nan" if frame["amax"] is None else f"{frame['amax']:8.2e}"
