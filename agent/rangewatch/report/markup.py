"""HTML of what came over the network: text is escaped, and what is not known is said to be unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

UNKNOWN = "unknown"
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_SECONDS = ((1e-3, "us", 1e6), (1.0, "ms", 1e3))


def table(caption: str, head: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    """The first cell of a row names it. Values are escaped; None is shown as unknown."""
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "".join(_row(row) for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table></div>\n"
    )


def _row(row: Sequence[Any]) -> str:
    first, *rest = (escape(UNKNOWN if value is None else str(value)) for value in row)
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'


def listed(title: str, items: Sequence[str]) -> str:
    """A small heading and its list; nothing without items."""
    if not items:
        return ""
    return f"<h4>{escape(title)}</h4><ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def sentence(parts: Iterable[tuple[str, str]]) -> str:
    """Pairs of kind (`text`, `code`, `strong`) and text, as a verdict has them."""
    tags = {"code": "code", "strong": "strong"}
    return "".join(
        f"<{tags[kind]}>{escape(text)}</{tags[kind]}>" if kind in tags else escape(text) for kind, text in parts
    )


def paragraph(text: str, style: str = "") -> str:
    return f'<p class="{style}">{escape(text)}</p>\n' if style else f"<p>{escape(text)}</p>\n"


def number(value: float | None, unit: str = "") -> str:
    """Three digits that matter."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}{unit}" if value == int(value) and abs(value) < 1e15 else f"{value:.3g}{unit}"


def seconds(value: float | None) -> str:
    """In the unit that reads best."""
    if value is None:
        return UNKNOWN
    for below, unit, factor in _SECONDS:
        if 0 < value < below:
            return f"{value * factor:.3g} {unit}"
    return f"{value:.3g} s"


def size(value: float | None, per: str = "") -> str:
    """Bytes, or bytes a second in powers of ten as nccl-tests counts them (`per`)."""
    if value is None:
        return UNKNOWN
    base, units = (1000.0, ("B", "kB", "MB", "GB", "TB")) if per else (1024.0, _BYTES)
    power = min(len(units) - 1, int(math.log(value, base))) if value >= 1 else 0
    return f"{value / base**power:.3g} {units[power]}{per}"


def scale(value: float | None) -> str:
    """A loss scale: 2^16."""
    if value is None or not value > 0:
        return UNKNOWN
    power = math.log2(value)
    return f"2^{int(power)}" if power == int(power) else number(value)


def ranks(numbers: Sequence[int], most: int = 16) -> str:
    """0, 1, 2 and 5 more."""
    shown = ", ".join(map(str, numbers[:most]))
    return f"{shown} and {len(numbers) - most} more" if len(numbers) > most else shown
