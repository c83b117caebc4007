"""`python -m tests.faults.make_docs` writes docs/diagnosis.md: the shelf of rules, and what each says of a run that has
the fault. The tests hold the file against both.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from rangewatch.commands.diagnose import finding_lines
from rangewatch_server import rules
from rangewatch_server.rules import Rule, presets
from rangewatch_server.rules.diagnosis import Diagnosis
from tests.faults.examples import ALL, Example
from tests.server.rules.conftest import Recording, Stored

PAGE = Path(__file__).parents[2] / "docs" / "diagnosis.md"
HEAD = """\
# Diagnosis

What Rangewatch can say is wrong with a run. `rangewatch diagnose RUN` prints it, most important first; the page Alerts
has the same findings as they come and go. `--stop STEP` says it as it was before that step.

Each finding names its place, its evidence, how it went on (`then`), what else it explains (`with it`) and what to try.
`critical` is a run that is broken, `warning` one that will be or that loses something, `info` is worth knowing. The
same stored run always gives the same findings. A threshold can be set for one run: [alerts.md](alerts.md).

This page is made from the rules by `python -m tests.faults.make_docs`. The reports are of small runs made by hand.
"""


def main() -> None:
    """Write it."""
    with tempfile.TemporaryDirectory() as folder:
        reports = {each: report(each, Path(folder, each.rule)) for each in ALL}
    PAGE.write_text(page(reports))


def report(example: Example, folder: Path) -> str:
    """What is printed of the first finding of the example's rule. Raises `ValueError` where there is none."""
    if example.is_stored:
        folder.mkdir(exist_ok=True)
        with Stored.opened(folder) as stored:
            found = _diagnosis(example, stored)
    else:
        found = _diagnosis(example, Recording())
    finding = next((each for each in found.findings if each.rule == example.rule), None)
    if finding is None:
        raise ValueError(f"{example.rule}: nothing found, but {[each.rule for each in found.findings]}, {found.failed}")
    lines = finding_lines(json.loads(msgspec.json.encode(finding)) | {"label": rules.label(finding)})
    return "\n".join(each.rstrip() for each in lines)


def _diagnosis(example: Example, recording: Recording) -> Diagnosis:
    example.write(recording)
    return recording.diagnose()


def page(reports: Mapping[Example, str]) -> str:
    """The whole page."""
    parts = [HEAD, _contents(), *(_section(each, reports) for each in rules.ALL), _presets()]
    return "\n".join(parts)


def _contents() -> str:
    lines = ["| rule | severity | what it finds |", "|---|---|---|"]
    lines += [f"| [`{each.name}`](#{each.name}) | {each.severity} | {each.title} |" for each in rules.ALL]
    return "\n".join(lines) + "\n"


def _section(rule: Rule, reports: Mapping[Example, str]) -> str:
    lines = [f"## {rule.name}", "", f"**{rule.title}** ({rule.severity}). {rule.explanation}", ""]
    if rule.thresholds:
        lines += ["| threshold | default | unit | |", "|---|---|---|---|"]
        lines += [f"| `{each.name}` | {each.default:.10g} | {each.unit} | {each.help} |" for each in rule.thresholds]
        lines.append("")
    if rule.explains:
        lines += ["It explains, and so joins: " + ", ".join(f"`{each}`" for each in rule.explains) + ".", ""]
    if rule.leads_to:
        names = ", ".join(f"`{each}`" for each in rule.leads_to)
        lines += [f"It stays before what it leads to: {names}.", ""]
    for each in ALL:
        if each.rule == rule.name:
            lines += [*([f"{each.title}:", ""] if each.title else []), "```text", reports[each], "```", ""]
    return "\n".join(lines)


def _presets() -> str:
    return (
        "\n".join(["## Presets", "", "Thresholds by which other tools judge, as sets with a name.", "", *_rows()])
        + "\n"
    )


def _rows() -> Iterator[str]:
    yield from ("| preset | what it is | thresholds |", "|---|---|---|")
    for each in presets.ALL:
        values = [
            f"`{rule}.{name}` {value:g}" for rule, given in each.thresholds.items() for name, value in given.items()
        ]
        yield f"| `{each.name}` | {each.title}. {each.help} | {', '.join(values)} |"


if __name__ == "__main__":
    main()
