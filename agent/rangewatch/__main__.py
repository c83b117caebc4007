"""The command `rangewatch`: finds a command's module by name, so that none is imported that is not needed."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable

from rangewatch.core.commands import COMMANDS, GROUPS
from rangewatch.core.version import VERSION

_HELP = ("-h", "--help", "help")


def main() -> int:
    """Run the command named by the first argument; its exit status."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in _HELP:
        sys.stdout.write(_usage())
        return 0
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"rangewatch {VERSION}\n")
        return 0
    if arguments[0] not in COMMANDS:
        sys.stderr.write(_unknown(arguments[0]))
        return 2
    try:
        return _run(arguments[0], arguments[1:])
    except KeyboardInterrupt:
        return 130  # as a shell has it for SIGINT


def _run(name: str, arguments: list[str]) -> int:
    module, extras, _ = COMMANDS[name]
    try:
        command: Callable[[list[str]], int] = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rangewatch"):
            raise
        needed = f"'rangewatch[{extras}]'" if extras else "rangewatch"
        sys.stderr.write(f"rangewatch {name}: {error.name} is not installed; pip install {needed}\n")
        return 2
    try:
        return command(arguments)
    except BrokenPipeError:  # the reader has seen enough, as `head` has; the interpreter flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    what = "option" if name.startswith("-") else "command"
    return f"rangewatch: there is no {what} {name!r}{meant} (rangewatch --help lists the commands)\n"


def _usage() -> str:
    lines = ["usage: rangewatch COMMAND [options]"]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<11} {command.summary}" for name, command in commands.items())]
    return "\n".join([*lines, "", "rangewatch COMMAND --help tells more; rangewatch --version tells the version.", ""])


if __name__ == "__main__":
    sys.exit(main())
