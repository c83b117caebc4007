"""`rangewatch completion SHELL`: a script with which the shell completes commands, options and file names."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import shtab

from rangewatch.core.command_parser import ERROR, CommandParser, command_parser, installed_parsers
from rangewatch.core.commands import COMMANDS

SHELLS = {
    "bash": ("~/.local/share/bash-completion/completions/rangewatch", "for bash, with Debian's bash-completion"),
    "zsh": ("~/.zfunc/_rangewatch", "for zsh, where ~/.zshrc has: fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": ("~/.config/fish/completions/rangewatch.fish", "for fish"),
    "tcsh": ("~/.rangewatch.tcsh", "for tcsh, where ~/.tcshrc has: source ~/.rangewatch.tcsh"),
}
"""Where a script may be put that is found by itself."""

FILES = ("FILE", "DATABASE")


def main(argv: Sequence[str]) -> int:
    """Print the script; 0."""
    options = parser().parse_args(argv)
    sys.stdout.write(shtab.complete(_root(), options.shell) + "\n")
    return 0


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "completion",
        "Print a script with which your shell completes commands, options, their values and file names. It has the "
        "commands of what is installed: print it again after an update.",
        examples={f"rangewatch completion {shell} > {path}": text for shell, (path, text) in SHELLS.items()},
        statuses={0: "the script is printed"} | ERROR,
    )
    made.add_argument("shell", choices=tuple(SHELLS), help="your shell")
    return made


def _root() -> argparse.ArgumentParser:
    """All commands in one parser, as shtab reads them. No command line is ever given to it."""
    root = argparse.ArgumentParser(prog="rangewatch", description="Live numerics for multi-GPU training.")
    root.add_argument("--version", action="version", version="", help="print the version")
    commands = root.add_subparsers(parser_class=_given)  # type: ignore[call-overload]
    for name, made in installed_parsers().items():
        for each in _all_arguments(made):
            _say_what_completes(each)
        commands.add_parser(name, help=COMMANDS[name].summary, of=made)
    return root


def _given(*, of: CommandParser, **_: object) -> CommandParser:
    """In the place of a parser's class: the parser that the command has already."""
    return of


def _all_arguments(made: CommandParser) -> Iterator[argparse.Action]:
    for _, actions in made.groups():
        yield from actions
    for each in made.subcommands().values():
        yield from _all_arguments(each)


def _say_what_completes(action: argparse.Action) -> None:
    """A metavar such as `{text,json}` has the values, where they are checked later than argparse would."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if metavar.startswith("{"):
        action.choices = metavar.strip("{}").split(",")
    elif metavar == "FOLDER":
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    elif metavar in FILES or action.type is Path:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
