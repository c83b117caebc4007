"""`rangewatch level RUN LEVEL`: have a live run record more, or less. Needs no torch and no store."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rangewatch.client.server_api import write_line
from rangewatch.commands.live.ask import States, parser_of, ranks_of, run
from rangewatch.core.command_parser import CommandParser


def main(argv: Sequence[str]) -> int:
    """Ask, wait and print from which step it holds; the exit status as `ask.run` says."""
    options = parser().parse_args(argv)
    body = {"kind": "level", "level": options.level}
    return run("level", options, body, lambda name, states: _emit(options.level, name, states))


def parser() -> CommandParser:
    """What the command takes."""
    made = parser_of(
        "level",
        "Change what a live run records, from its next step on and until it ends.",
        {
            "rangewatch level my-run frames": "record inputs, weights and updates too, from now on",
            "rangewatch level my-run default": "record again what the run was started with",
        },
    )
    made.add_argument(
        "level", metavar="{grads,outputs,frames,default}", help="what to record; default: what the run was started with"
    )
    return made


def _emit(level: str, name: str, states: States) -> None:
    groups: dict[int | None, States] = {}
    for each in states:
        groups.setdefault(each["first_step"], []).append(each)
    for step, group in groups.items():
        since = "" if step is None else f" from step {step} on"
        write_line(sys.stdout, f"{name}: level {level} on {ranks_of(group)}{since}.")
