"""`rangewatch diagnose RUN`: what is wrong with a run, why, and what to try, from a running server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict
from urllib.parse import urlencode

from rangewatch.client.server_api import ServerError, add_arguments, find_run, get, write_line
from rangewatch.core.command_parser import ERROR, SERVER_ENVIRONMENT, CommandParser, command_parser


class Remedy(TypedDict):
    text: str
    code: str
    because: str


class Finding(TypedDict):
    """One of GET /api/v1/runs/{id}/diagnosis (docs/api.md)."""

    rule: str
    severity: str
    summary: str
    evidence: list[str]
    path: list[str]
    remedy: list[Remedy]
    consequences: list[str]


class _Findings(TypedDict):
    start: int
    stop: int
    findings: list[Finding]
    failed: dict[str, str]


class Diagnosis(_Findings, total=False):
    """`thresholds`: what is not the default, by rule; an older server does not say it."""

    thresholds: dict[str, dict[str, Any]]


def main(argv: Sequence[str]) -> int:
    """Print the findings; 0 when there is none that is critical or a warning, 1 when there is, 2 for an error."""
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
            "rangewatch diagnose my-run --stop 5000 --json": "what was wrong before step 5000, for a program",
        },
        statuses={0: "nothing critical and no warning was found", 1: "something was found"} | ERROR,
        environment=SERVER_ENVIRONMENT,
    )
    add_arguments(made)
    made.add_argument("--stop", type=int, metavar="STEP", help="say it as it was before this step (default: now)")
    made.add_argument("--json", action="store_true", help="print the findings as JSON")
    return made


def _diagnose(options: argparse.Namespace) -> int:
    run = find_run(options.url, options.run)
    query = "" if options.stop is None else "?" + urlencode({"stop": options.stop})
    found = get(options.url, f"/api/v1/runs/{run['id']}/diagnosis{query}", Diagnosis)
    lines = [_as_json(found)] if options.json else _text(run["name"], found)
    for line in lines:
        write_line(sys.stdout, line)
    return int(any(each["severity"] != "info" for each in found["findings"]))


def _as_json(found: Diagnosis) -> str:
    return json.dumps(found).replace("\x7f", "\\u007f")  # DEL is the one control character that `dumps` leaves


def _text(run: str, found: Diagnosis) -> Iterator[str]:
    steps = f"steps {found['start']} to {found['stop'] - 1}" if found["stop"] > found["start"] else "no steps yet"
    count = len(found["findings"])
    yield f"run {run}, {steps}: {count or 'no'} finding{'' if count == 1 else 's'}"
    otherwise = [
        f"{rule}.{name} = {value if isinstance(value, bool) else f'{value:g}'}"
        for rule, values in found.get("thresholds", {}).items()
        for name, value in values.items()
    ]
    if otherwise:
        yield f"thresholds of this run: {', '.join(otherwise)}"
    for each in found["findings"]:
        yield ""
        yield from finding_lines(each)
    for rule, reason in found["failed"].items():
        yield ""
        yield f"UNKNOWN   the rule {rule} could not be applied: {reason}"


def finding_lines(found: Finding) -> Iterator[str]:
    """One finding, as people read it."""
    yield f"{found['severity'].upper():<9} {found['summary']}"
    yield from _list("why", found["evidence"])
    yield from _list("then", found["path"])
    yield from _list("with it", found["consequences"])
    for remedy in found["remedy"]:
        yield from _list("try", [remedy["text"] + (f" ({remedy['because']})" if remedy["because"] else "")])
        yield from (f"              {line}" for line in remedy["code"].splitlines())
    yield f"  rule    {found['rule']}"


def _list(name: str, items: Sequence[Any]) -> Iterator[str]:
    for place, item in enumerate(items):
        yield f"  {name if place == 0 else '':<7} {item}"
