"""The parser of a command: help with examples and exit statuses, and one line for a mistake, with the nearest name."""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from rangewatch.core.commands import COMMANDS
from rangewatch.core.options import OTHER_NAMES

ERROR = {2: "wrong arguments, or an error, reported in one line"}
INTERRUPTED = {130: "interrupted"}
SERVER_ENVIRONMENT = {
    "RANGEWATCH_URL": "the server, where --url is not given",
    "RANGEWATCH_TOKEN": "the token that the server asks for, if it does",
}
"""What every command reads that talks to a running server."""

_LABEL = re.compile(r"(\s*\S+\s{2,})\S")


class _Formatter(argparse.HelpFormatter):
    """Text of several lines keeps them; each is wrapped, and goes on under what follows its label."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for each in text.split("\n") for line in _wrapped(each, width))


def _wrapped(line: str, width: int) -> list[str]:
    label = _LABEL.match(line)
    hanging = " " * (label.end() - 1 if label else len(line) - len(line.lstrip()))
    return textwrap.wrap(line, width, subsequent_indent=hanging, break_on_hyphens=False) or [""]


class CommandParser(argparse.ArgumentParser):
    """Knows examples, exit statuses and the environment too, for the help and for the pages made from it."""

    def __init__(
        self, *, examples: Mapping[str, str] | None = None, statuses: Mapping[int, str] | None = None,
        environment: Mapping[str, str] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(formatter_class=_Formatter, **options)
        self.examples, self.statuses, self.environment = examples or {}, statuses or {}, environment or {}
        self.epilog = "\n\n".join(self._sections()) or None

    def parse_args(  # type: ignore[override]  # no command has a namespace of its own class
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As argparse does it, but a misspelt option is reported with the one that may have been meant."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._too_many(unknown[0]))
        return options

    def error(self, message: str) -> NoReturn:
        """One line, and status 2."""
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help tells more)\n")

    def groups(self) -> Iterator[tuple[str, list[argparse.Action]]]:
        """The arguments that are shown, by the title of their group."""
        for group in self._action_groups:
            if shown := [each for each in group._group_actions if each.help is not argparse.SUPPRESS]:
                yield group.title or "", shown

    def subcommands(self) -> dict[str, CommandParser]:
        """By name, such as `create`; none for most commands."""
        choices = (each.choices for each in self._actions if isinstance(each, argparse._SubParsersAction))
        return next(choices, {})

    def help_of(self, action: argparse.Action) -> str:
        """The help of an argument with its default put in."""
        return self._get_formatter()._expand_help(action)

    def _too_many(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"{argument!r} is one argument too many"
        name, options = argument.partition("=")[0], self._option_string_actions
        meant = f"--{OTHER_NAMES.get(name.lstrip('-').replace('-', '_'))}"
        near = [meant] if meant in options else difflib.get_close_matches(name, options, n=1)
        return f"there is no option {argument!r}{f'; did you mean {near[0]}?' if near else ''}"

    def _sections(self) -> Iterator[str]:
        if self.examples:
            yield "\n".join(["examples:", *(f"  {line}\n      {what}" for line, what in self.examples.items())])
        for title, rows in (("exit status", dict(sorted(self.statuses.items()))), ("environment", self.environment)):
            if rows:
                widest = max(len(str(each)) for each in rows)
                yield "\n".join([f"{title}:", *(f"  {each!s:<{widest}}  {text}" for each, text in rows.items())])


def command_parser(
    name: str, description: str, *, examples: Mapping[str, str], statuses: Mapping[int, str],
    environment: Mapping[str, str] | None = None,
) -> CommandParser:  # fmt: skip
    """The parser of `rangewatch name`, whose help begins with what the list of commands says of it."""
    summary = COMMANDS[name].summary
    return CommandParser(
        prog=f"rangewatch {name}", description=f"{summary[0].upper()}{summary[1:]}.\n\n{' '.join(description.split())}",
        examples=examples, statuses=statuses, environment=environment,
    )  # fmt: skip


def installed_parsers() -> dict[str, CommandParser]:
    """By name, those of commands that can be imported here: a host that only trains has no server."""
    parsers: dict[str, CommandParser] = {}
    for name, command in COMMANDS.items():
        try:
            parsers[name] = importlib.import_module(command.module).parser()
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("rangewatch"):
                raise
    return parsers
