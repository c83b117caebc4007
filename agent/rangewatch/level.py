"""`rangewatch level RUN LEVEL`: have a live run record more, or less. Needs no torch and no store."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rangewatch.ask import States, parser_of, ranks_of, run
from rangewatch.server_api import write_line


def main(argv: Sequence[str]) -> int:
    """Ask, wait and print from which step it holds; the exit status as `ask.run` says."""
    parser = parser_of("level", "Change what a live run records, from its next step on and until it ends.")
    parser.add_argument("level", help="grads, outputs, frames, or default: what the run was started with")
    options = parser.parse_args(argv)
    body = {"kind": "level", "level": options.level}
    return run("level", options, body, lambda name, states: _tell(options.level, name, states))


def _tell(level: str, name: str, states: States) -> None:
    groups: dict[int | None, States] = {}
    for each in states:
        groups.setdefault(each["first_step"], []).append(each)
    for step, group in groups.items():
        since = "" if step is None else f" from step {step} on"
        write_line(sys.stdout, f"{name}: level {level} on {ranks_of(group)}{since}.")
