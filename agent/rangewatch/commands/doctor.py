"""`rangewatch doctor`: what is wrong with this machine's environment, why it matters, what to type. Needs no torch."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypedDict

import msgspec

from rangewatch.checks.doctor import checks
from rangewatch.checks.doctor.details import environment
from rangewatch.checks.doctor.findings import Finding, Severity
from rangewatch.checks.doctor.summary import summary
from rangewatch.client.server_api import ServerError, default_url, find_run, get, write_line
from rangewatch.core.command_parser import INTERRUPTED, SERVER_ENVIRONMENT, CommandParser, command_parser


class RankFinding(TypedDict):
    """A finding as the server tells it: of one rank, or of what ranks have differently."""

    code: str
    severity: Severity
    what: str
    why: str
    do: str
    where: str


class Environment(TypedDict):
    """What is read of GET /api/v1/runs/{id}/environment (docs/doctor.md)."""

    findings: list[RankFinding]
    ranks: list[dict[str, Any]]


def main(argv: Sequence[str]) -> int:
    """Print facts and findings; 0: nothing worse than an info, 1: a warning or an error, 2: no answer."""
    options = parser().parse_args(argv)
    try:
        return _of_run(options) if options.run else _of_this_machine(options)
    except ServerError as error:
        write_line(sys.stderr, f"rangewatch doctor: {error}")
        return 2
    except KeyboardInterrupt:
        return 130


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "doctor",
        "Look for what is wrong with this machine's torch, CUDA, compilers, NCCL and network, and say what to type. "
        "With --run: what is wrong on any rank of a run, and what ranks have differently.",
        examples={
            "rangewatch doctor": "this machine",
            "rangewatch doctor --run my-run": "every rank of a run, and what they have differently",
        },
        statuses={
            0: "nothing worse than an info", 1: "a warning or an error was found", 2: "wrong arguments, or no server",
        }
        | INTERRUPTED,
        environment=SERVER_ENVIRONMENT,
    )  # fmt: skip
    add = made.add_argument
    add("--json", action="store_true", help="print facts and findings as JSON")
    add("--quick", action="store_true", help="run no program and import no torch: what a rank in training looks at")
    add("--run", help="name or number of a run, of a running server (default: this machine)")
    add("--url", default=default_url(), help="server of --run (default: %(default)s)")
    return made


def _of_this_machine(options: argparse.Namespace) -> int:
    if not (options.quick or options.json):
        write_line(sys.stderr, "looking: importing torch in a child takes some seconds ...")
    facts = environment(deep=not options.quick)
    found = checks.findings(facts)
    if options.json:
        _print_json({"facts": facts, "findings": [asdict(each) for each in found]})
    else:
        _print([*summary(facts), *_reported(found)])
    return _status(each.severity for each in found)


def _of_run(options: argparse.Namespace) -> int:
    run = find_run(options.url, options.run)
    answer = get(options.url, f"/api/v1/runs/{run['id']}/environment", Environment)
    if options.json:
        _print_json(answer)
    else:
        found = [msgspec.convert(each, Finding) for each in answer["findings"]]
        _print([f"Run {run['name']}, {len(answer['ranks'])} ranks", *_reported(found)])
    return _status(each["severity"] for each in answer["findings"])


def _reported(found: list[Finding]) -> list[str]:
    if not found:
        return ["", "Nothing wrong was found."]
    lines = [""]
    for finding in found:
        lines += _wrapped(f"{finding.severity.upper()}: {finding.what}", "  ")
        lines += [*_wrapped(f"  why: {finding.why}", " " * 7), f"  do:  {finding.do}", ""]
    counts = [f"{count} {name}{'s' * (count > 1)}" for name, count in _counts(found).items()]
    return [*lines, ", ".join(counts)]


def _wrapped(line: str, indent: str) -> list[str]:
    """The line in pieces as wide as the terminal; in one where it goes to a file."""
    if not sys.stdout.isatty():
        return [line]
    return textwrap.wrap(line, max(60, shutil.get_terminal_size().columns), subsequent_indent=indent)


def _counts(found: list[Finding]) -> dict[str, int]:
    severities = [finding.severity for finding in found]
    return {severity: severities.count(severity) for severity in dict.fromkeys(severities)}


def _status(severities: Iterable[str]) -> int:
    return int(any(severity in ("error", "warning") for severity in severities))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        write_line(sys.stdout, line)


def _print_json(value: object) -> None:
    write_line(sys.stdout, json.dumps(value).replace("\x7f", "\\u007f"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
