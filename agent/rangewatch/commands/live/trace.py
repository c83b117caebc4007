"""`rangewatch trace RUN`: have the next steps of a live run recorded in full. Needs no torch and no store."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from rangewatch.client.connection import default_url
from rangewatch.client.server_api import write_line
from rangewatch.commands.live.ask import States, parser_of, ranks_of, run
from rangewatch.core.command_parser import CommandParser


def main(argv: Sequence[str]) -> int:
    """Ask, wait and print the steps with the command that reports on them; the exit status as `ask.run` says."""
    options = parser().parse_args(argv)
    body = {"kind": "trace", "steps": options.steps, "modules": options.module}
    return run("trace", options, body, lambda name, states: _emit(options, name, states))


def parser() -> CommandParser:
    """What the command takes."""
    made = parser_of(
        "trace",
        "Record the next steps of a live run in full: every kind of tensor, every statistic. The run goes on, slower "
        "by what that costs.",
        {
            "rangewatch trace my-run --steps 2": "the next two steps of all ranks",
            "rangewatch trace my-run --rank 3 --module 'blocks.3.*'": "one step of some modules of one rank",
        },
    )
    add = made.add_argument
    add("--steps", type=int, default=1, help="how many steps (default: %(default)s)")
    add(
        "--module", action="append", default=[], metavar="PATTERN",
        help="modules, such as 'blocks.3.*' (may repeat; default: all)",
    )  # fmt: skip
    return made


def _emit(options: argparse.Namespace, name: str, states: States) -> None:
    """A line for each range of steps: ranks begin when they hear of it, not all at the same step."""
    groups: dict[tuple[int, int], States] = {}
    for each in states:
        if (last := each["last_step"]) is not None:
            first = last if each["first_step"] is None else each["first_step"]  # the event of it may have been dropped
            groups.setdefault((first, last), []).append(each)
    for (first, last), group in groups.items():
        steps = f"Step {first} is" if first == last else f"Steps {first} to {last} are"
        write_line(sys.stdout, f"{steps} recorded in full on {ranks_of(group)}:")
        write_line(sys.stdout, f"  {_report(options, name, first, group)}")


def _report(options: argparse.Namespace, name: str, step: int, group: States) -> str:
    command = ["rangewatch", "report", name, "--step", str(step), "--rank", str(min(each["rank"] for each in group))]
    return shlex.join(command if options.url == default_url() else [*command, "--url", options.url])
