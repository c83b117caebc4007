"""The commands that are installed, with their parsers, and their help as Markdown for docs/cli.md."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

from rangewatch.core.command_parser import CommandParser
from rangewatch.core.commands import COMMANDS, GROUPS

HEAD = """\
# Command line

Every command of `rangewatch`, as `rangewatch COMMAND --help` has it; `python -m rangewatch COMMAND` is the same.
Options may be given before or after other arguments. What is wrong with a command line is told in one line, with exit
status 2. `rangewatch completion SHELL` has the shell complete all of it, and `rangewatch man` is a manual page.

This page is made from the commands' parsers by `python -m rangewatch.commands.help.pages > docs/cli.md`.
"""


def installed_parsers() -> dict[str, CommandParser]:
    """By name, those of commands that can be imported here: a host that only trains has no server."""
    found: dict[str, CommandParser] = {}
    for name, command in COMMANDS.items():
        try:
            found[name] = importlib.import_module(command.module).parser()
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("rangewatch"):
                raise
    return found


def rows(made: CommandParser) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Groups of arguments: their title, and what is typed with what it means."""
    for title, actions in made.groups():
        if shown := [(spelling(each), made.help_of(each)) for each in actions if each.help and each.dest != "help"]:
            yield title, shown


def spelling(action: argparse.Action) -> str:
    """As it is typed: `--rank RANK`, `--json [FILE]`, `run`."""
    if not action.option_strings:
        return str(action.metavar or action.dest)
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    value = action.metavar or choices
    return f"{', '.join(action.option_strings)} {f'[{value}]' if action.nargs == '?' else value}"


def markdown() -> str:
    """The whole page."""
    parsers = installed_parsers()
    pieces = [HEAD]
    for title, commands in GROUPS.items():
        pieces.append(f"## {title}\n")
        for name in commands:
            pieces += _section(parsers[name])
    return "\n".join(pieces)


def _section(made: CommandParser) -> Iterator[str]:
    yield f"### `{made.prog}`\n\n{made.description}\n"
    yield "```console\n" + "\n".join(f"$ {line}\n# {what}" for line, what in made.examples.items()) + "\n```\n"
    for title, shown in rows(made):
        yield _table(title.capitalize(), shown)
    for each in made.subcommands().values():
        for _, shown in rows(each):
            yield _table(f"`{each.prog.removeprefix('rangewatch ')}`", shown)
    yield _table("Exit status", [(str(status), text) for status, text in sorted(made.statuses.items())])
    if made.environment:
        yield _table("Environment", list(made.environment.items()))


def _table(title: str, shown: list[tuple[str, str]]) -> str:
    lines = [f"| `{_cell(left)}` | {_cell(right)} |" for left, right in shown]
    return "\n".join([f"| {title} | |", "|---|---|", *lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201  it is what this module is run for
