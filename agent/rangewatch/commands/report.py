"""`rangewatch report RUN`: the classic text report of a step, from a running server. Needs no torch and no store."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, TypedDict
from urllib.parse import urlencode

from rangewatch.client.connection import ServerError
from rangewatch.client.server_api import SkippedOverflow, add_arguments, ending, find_run, get, steps_of, write_line
from rangewatch.core.command_parser import ERROR, SERVER_ENVIRONMENT, CommandParser, command_parser
from rangewatch.report.source import Finding, headline


class _Step(TypedDict):
    observed: bool
    rank: int | None


class Step(_Step, total=False):
    """What is read of GET /api/v1/runs/{id}/step (docs/api.md). There is no `report` where the run has no step."""

    report: str


class _Diagnosis(TypedDict):
    findings: list[Finding]


def main(argv: Sequence[str]) -> int:
    """Print the report; 0 when it found a NaN or Inf or the step was named, 1 when there is none, 2 for an error."""
    options = parser().parse_args(argv)
    try:
        return _report(options)
    except ServerError as error:
        write_line(sys.stderr, f"rangewatch report: {error}")
        return 2


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "report",
        "Print the frames of one rank and step in call order, up to the first NaN or Inf. Without --step: the run's "
        "first overflow.",
        examples={
            "rangewatch report my-run": "where it overflowed first",
            "rangewatch report my-run --step 120 --rank 3 --frames 50": "this step of this rank, further back",
        },
        statuses={0: "it found a NaN or Inf, or the step was named", 1: "the run has no overflow"} | ERROR,
        environment=SERVER_ENVIRONMENT,
    )
    add_arguments(made)
    add = made.add_argument
    add("--step", type=int, help="this step, overflow or not (default: where it overflowed first)")
    add("--rank", type=int, help="this rank (default: where it overflowed first, else the lowest)")
    add("--frames", type=int, default=21, help="how many modules to go back (default: %(default)s)")
    add("--json", action="store_true", help="print the step as JSON")
    return made


def _report(options: argparse.Namespace) -> int:
    run = find_run(options.url, options.run)
    first = run["first_overflow"]
    if options.step is None and first is None:
        skipped = run.get("first_skipped")
        where = f"run {run['name']}, {steps_of(run)}"
        if skipped:
            write_line(sys.stdout, f"No NaN or Inf in a step that was taken of {where}.")
            write_line(sys.stdout, _skipped_text(run["name"], skipped))
        else:
            write_line(sys.stdout, f"No NaN or Inf in {where}.")
        if (ended := ending(run)) is not None:
            write_line(sys.stdout, f"{ended[0].upper()}{ended[1:]}")
        _say_what_began(options.url, run, "What else is wrong", None)
        return 1
    step = options.step if first is None or options.step is not None else first["step"]
    rank = options.rank if options.rank is not None else first["rank"] if first else None
    query = {"step": step, "report_frames": options.frames} | ({} if rank is None else {"rank": rank})
    answer = get(options.url, f"/api/v1/runs/{run['id']}/step?{urlencode(query)}", Step)
    if not answer["observed"]:
        raise ServerError(f"nothing is stored for step {step} of rank {answer['rank']}")
    as_json = json.dumps(answer).replace("\x7f", "\\u007f")  # DEL is the one control character that `dumps` leaves
    for line in [as_json] if options.json else answer.get("report", "").split("\n"):
        write_line(sys.stdout, line)
    if options.step is None and not options.json:
        _say_what_began(options.url, run, "It had begun before", step)
    return 0


def _say_what_began(url: str, run: Any, words: str, before: int | None) -> None:
    """The first finding, where it is a warning or worse and began before that step; a report has no causes."""
    try:
        findings = get(url, f"/api/v1/runs/{run['id']}/diagnosis", _Diagnosis)["findings"]
    except ServerError:
        return  # the report stands by itself
    first = findings[0] if findings else None
    if first is None or first["severity"] == "info" or not (before is None or (first.get("step") or before) < before):
        return
    write_line(sys.stdout, f"{words}: {headline(first)}")
    write_line(sys.stdout, f"Why, and what to try: rangewatch diagnose {run['name']}")


def _skipped_text(run: str, first: SkippedOverflow) -> str:
    tensor = f"{first['fqn'] or '(model)'} {first['kind']}"
    held = "NaN" if first["what"] == "nan" else "Inf"
    step, rank = first["step"], first["rank"]
    return (
        f"The loss scaler skipped steps in which gradients overflowed, the first at step {step}, rank {rank}: {tensor} "
        f"held {held} first. Its frames: rangewatch report {run} --step {step} --rank {rank}"
    )
