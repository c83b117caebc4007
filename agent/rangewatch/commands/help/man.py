"""`rangewatch man`: one manual page of all commands, in roff."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rangewatch.commands.help.pages import installed_parsers, rows
from rangewatch.core.command_parser import CommandParser, command_parser
from rangewatch.core.commands import GROUPS
from rangewatch.core.version import VERSION


def main(argv: Sequence[str]) -> int:
    """Print the page; 0."""
    parser().parse_args(argv)
    sys.stdout.write("\n".join(_page()) + "\n")
    return 0


def parser() -> CommandParser:
    """What the command takes: nothing."""
    return command_parser(
        "man",
        "Print a manual page of all commands of what is installed, in roff.",
        examples={
            "rangewatch man | man -l -": "read it",
            "rangewatch man > ~/.local/share/man/man1/rangewatch.1": "install it, for `man rangewatch`",
        },
        statuses={0: "the page is printed", 2: "wrong arguments"},
    )


def _page() -> Iterator[str]:
    parsers = installed_parsers()
    yield f'.TH RANGEWATCH 1 "" "rangewatch {VERSION}"'
    yield from (".SH NAME", r"rangewatch \- live numerics and health for multi\-GPU training")
    yield from (".SH SYNOPSIS", ".B rangewatch", r"\fICOMMAND\fR [options]")
    for title, commands in GROUPS.items():
        yield f".SH {_roff(title.upper())}"
        for name in commands:
            if name in parsers:
                yield from _section(parsers[name])


def _section(made: CommandParser) -> Iterator[str]:
    yield f".SS {_roff(made.prog)}"
    yield from "\n.PP\n".join(map(_roff, (made.description or "").split("\n\n"))).split("\n")
    for _, shown in rows(made):
        yield from _items(shown)
    for each in made.subcommands().values():
        yield from (".PP", rf"\fB{_roff(each.prog)}\fR")
        for _, shown in rows(each):
            yield from _items(shown)
    for title, pairs in (
        ("Examples", made.examples.items()),
        ("Exit status", sorted(made.statuses.items())),
        ("Environment", made.environment.items()),
    ):
        if pairs:
            yield from (".PP", rf"\fI{title}\fR")
            yield from _items([(str(left), right) for left, right in pairs])


def _items(pairs: list[tuple[str, str]]) -> Iterator[str]:
    for left, right in pairs:
        yield from (".TP", rf"\fB{_roff(left)}\fR", _roff(right))


def _roff(text: str) -> str:
    """Nothing in it is taken for a request or an escape."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
