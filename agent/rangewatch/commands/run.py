"""`rangewatch run -- COMMAND`: start a training that nobody edits, and attach to it from outside the script."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from rangewatch.autoattach import SITE, VARIABLE
from rangewatch.core.command_parser import ERROR, SERVER_ENVIRONMENT, CommandParser, command_parser

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as a shell has them


def main(argv: Sequence[str]) -> int:
    """Become the command; returns only where that cannot be."""
    options = parser().parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    added = _environment(options.url, options.run, os.environ)
    if options.print_env:
        sys.stdout.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in added.items())
        return 0
    if not command:
        sys.stderr.write("rangewatch run: give a command after --, such as: rangewatch run -- torchrun train.py\n")
        return 2
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, {**os.environ, **added})  # noqa: S606 - the user's own command
    except FileNotFoundError:
        sys.stderr.write(f"rangewatch run: there is no program {command[0]!r}\n")
        return NOT_FOUND
    except OSError as error:
        hint = f"; give python before it: rangewatch run -- python {command[0]}" if command[0].endswith(".py") else ""
        sys.stderr.write(f"rangewatch run: {command[0]}: {error.strerror}{hint}\n")
        return NOT_EXECUTABLE


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "run",
        "Starts the command with a hook that every Python process in it inherits: once such a process has made an "
        "optimizer, what it trains is attached before its first forward, and stderr says to what. Where nothing can be "
        "found, that is said and the script runs as it is. The command takes the place of this process, so its exit "
        "status and its signals are its own. Options of attach are the variables RANGEWATCH_* (docs/options.md).",
        examples={
            "rangewatch run -- torchrun --nproc-per-node 8 train.py": "every rank of it",
            "rangewatch run --url http://host:8642 -- python train.py": "sends there",
            "rangewatch run --print-env": "for the eval of a job's script: the same for all that it starts",
        },
        statuses=ERROR
        | {
            0: "of --print-env; otherwise the status is the command's",
            NOT_EXECUTABLE: "the command cannot be started",
            NOT_FOUND: "there is no such command",
        },
        environment={
            "RANGEWATCH_TOKEN": SERVER_ENVIRONMENT["RANGEWATCH_TOKEN"],
            "RANGEWATCH_*": "each option of attach, for the processes that are attached",
        },
    )
    made.add_argument("--url", help="server to send to (default: RANGEWATCH_URL, or http://127.0.0.1:8642)")
    made.add_argument("--run", metavar="NAME", help="name of the run (default: RANGEWATCH_RUN, or script and time)")
    made.add_argument(
        "--print-env", action="store_true", help="print the variables as shell commands, and start nothing"
    )
    made.add_argument("command", nargs="...", help="what to start, with its arguments, after --")
    return made


def _environment(url: str | None, run: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the command gets besides those there are."""
    before = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each and each != str(SITE)]
    added = {VARIABLE: "1", "PYTHONPATH": os.pathsep.join([str(SITE), *before])}
    named = {"RANGEWATCH_URL": url, "RANGEWATCH_RUN": run}
    return added | {name: value for name, value in named.items() if value is not None}
