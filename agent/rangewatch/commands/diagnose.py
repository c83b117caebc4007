"""`rangewatch diagnose RUN`: what is wrong with a run, why, and what to try, from a running server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict
from urllib.parse import urlencode

from rangewatch.client.connection import ServerError
from rangewatch.client.server_api import ENDED_BADLY, add_arguments, ending, find_run, get, write_line
from rangewatch.core.command_parser import ERROR, SERVER_ENVIRONMENT, CommandParser, command_parser
from rangewatch.report.source import Finding, headline


class _Findings(TypedDict):
    start: int
    stop: int
    findings: list[Finding]
    failed: dict[str, str]


class Diagnosis(_Findings, total=False):
    """`thresholds`: what is not the default, by rule; an older server does not say it."""

    thresholds: dict[str, dict[str, Any]]


def main(argv: Sequence[str]) -> int:
    """Print the findings; 0 when there is none that is critical or a warning and no rank failed or died, else 1.

    2 for an error.
    """
    options = parser().parse_args(argv)
    try:
        return _diagnose(options)
    except ServerError as error:
        write_line(sys.stderr, f"rangewatch diagnose: {error}")
        return 2


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "diagnose",
        "Say what is wrong with a run, most important first: where it began, the evidence, what to try.",
        examples={
            "rangewatch diagnose my-run": "what is wrong now",
            "rangewatch diagnose my-run --stop 5000 --json": "what was wrong before step 5000, as JSON",
        },
        statuses={
            0: "no critical finding and no warning",
            1: "a critical finding or a warning, or the run failed or died",
        }
        | ERROR,
        environment=SERVER_ENVIRONMENT,
    )
    add_arguments(made)
    made.add_argument("--stop", type=int, metavar="STEP", help="diagnose only the steps before this one (default: all)")
    made.add_argument("--json", action="store_true", help="print the findings as JSON")
    return made


def _diagnose(options: argparse.Namespace) -> int:
    run = find_run(options.url, options.run)
    query = "" if options.stop is None else "?" + urlencode({"stop": options.stop})
    diagnosis = get(options.url, f"/api/v1/runs/{run['id']}/diagnosis{query}", Diagnosis)
    ended = None if options.stop is not None else ending(run)
    lines = [_as_json(diagnosis)] if options.json else _text(run["name"], diagnosis, ended)
    for line in lines:
        write_line(sys.stdout, line)
    has_ended_badly = ended is not None and run.get("state") in ENDED_BADLY
    return int(has_ended_badly or any(each["severity"] != "info" for each in diagnosis["findings"]))


def _as_json(diagnosis: Diagnosis) -> str:
    return json.dumps(diagnosis).replace("\x7f", "\\u007f")  # DEL is the one control character that `dumps` leaves


def _text(run: str, diagnosis: Diagnosis, ended: str | None = None) -> Iterator[str]:
    steps = (
        f"steps {diagnosis['start']} to {diagnosis['stop'] - 1}"
        if diagnosis["stop"] > diagnosis["start"]
        else "no steps yet"
    )
    count = len(diagnosis["findings"])
    yield f"run {run}, {steps}: {count or 'no'} finding{'' if count == 1 else 's'}"
    if ended is not None:
        yield ended
    otherwise = [
        f"{rule}.{name} = {value if isinstance(value, bool) else f'{value:g}'}"
        for rule, values in diagnosis.get("thresholds", {}).items()
        for name, value in values.items()
    ]
    if otherwise:
        yield f"thresholds of this run: {', '.join(otherwise)}"
    for each in diagnosis["findings"]:
        yield ""
        yield from finding_lines(each)
    for rule, reason in diagnosis["failed"].items():
        yield ""
        yield f"UNKNOWN   the rule {rule} could not be applied: {reason}"


def finding_lines(finding: Finding) -> Iterator[str]:
    """One finding, as people read it."""
    yield f"{finding['severity'].upper():<9} {headline(finding)}"
    yield from _list("why", finding["evidence"])
    yield from _list("then", finding["path"])
    yield from _list("with it", finding["consequences"])
    for remedy in finding["remedy"]:
        yield from _list("try", [remedy["text"] + (f" ({remedy['because']})" if remedy["because"] else "")])
        yield from (f"              {line}" for line in remedy["code"].splitlines())
    yield f"  rule    {finding['rule']}"


def _list(name: str, items: Sequence[Any]) -> Iterator[str]:
    for place, item in enumerate(items):
        yield f"  {name if place == 0 else '':<7} {item}"
