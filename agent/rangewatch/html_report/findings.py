"""What is wrong with the run: why, how it went on, and what to try."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from rangewatch.client import Run
from rangewatch.html_report.markup import listed, paragraph


def write(run: Run, _: dict[str, Any]) -> Iterator[str]:
    diagnosis = run.diagnosis()
    if not diagnosis["findings"]:
        yield paragraph("Nothing is wrong as far as the rules see.")
    for each in diagnosis["findings"]:
        yield from _finding(each)
    for rule, reason in diagnosis["failed"].items():
        yield paragraph(f"The rule {rule} could not be applied: what it would find is unknown ({reason}).")


def _finding(found: dict[str, Any]) -> Iterator[str]:
    yield f'<section class="{escape(found["severity"])}"><h3>{escape(found["summary"])}</h3>'
    yield paragraph(f"{found['severity']}, rule {found['rule']}", "muted")
    for name, title in (("evidence", "Why"), ("path", "How it went on"), ("consequences", "What it explains")):
        yield listed(title, found[name])
    if found["remedy"]:
        yield "<h4>What to try</h4>"
    for remedy in found["remedy"]:
        yield paragraph(remedy["text"] + (f" ({remedy['because']})" if remedy["because"] else ""))
        yield f"<pre>{escape(remedy['code'])}</pre>" if remedy["code"] else ""
    yield "</section>\n"
