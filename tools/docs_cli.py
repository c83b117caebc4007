"""docs/cli.md: the help of every command, from its parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from tools.docs_text import table

from rangewatch.core.command_parser import CommandParser, installed_parsers
from rangewatch.core.commands import GROUPS

HEAD = """\
# Command line

Every command of `rangewatch`, as `rangewatch COMMAND --help` has it; `python -m rangewatch COMMAND` is the same.
Options may be given before or after other arguments. A mistake in a command line is reported in one line, with exit
status 2. `rangewatch completion SHELL` has the shell complete all of it.

This page is made from the commands' parsers by `python -m tools.docs_tables`.
"""


def cli_page() -> str:
    """Every command in its group; a shell's own settings (`RANGEWATCH_*`) show as defaults."""
    parsers = installed_parsers()
    pieces = [HEAD]
    for title, commands in GROUPS.items():
        pieces.append(f"## {title}\n")
        for name in commands:
            pieces += _section(parsers[name])
    return "\n".join(pieces)


def _rows(made: CommandParser) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Groups of arguments: their title, and what is typed with what it means."""
    for title, actions in made.groups():
        if shown := [(_spelling(each), made.help_of(each)) for each in actions if each.help and each.dest != "help"]:
            yield title, shown


def _spelling(action: argparse.Action) -> str:
    """As it is typed: `--rank RANK`, `--json [FILE]`, `run`."""
    if not action.option_strings:
        return str(action.metavar or action.dest)
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    value = action.metavar or choices
    return f"{', '.join(action.option_strings)} {f'[{value}]' if action.nargs == '?' else value}"


def _section(made: CommandParser) -> Iterator[str]:
    yield f"### `{made.prog}`\n\n{made.description}\n"
    yield "```console\n" + "\n".join(f"$ {line}\n# {what}" for line, what in made.examples.items()) + "\n```\n"
    for title, shown in _rows(made):
        yield table((title.capitalize(), ""), _code(shown))
    for each in made.subcommands().values():
        for _, shown in _rows(each):
            yield table((f"`{each.prog.removeprefix('rangewatch ')}`", ""), _code(shown))
    yield table(("Exit status", ""), _code((str(status), text) for status, text in sorted(made.statuses.items())))
    if made.environment:
        yield table(("Environment", ""), _code(made.environment.items()))


def _code(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return ((f"`{typed}`", text) for typed, text in pairs)
