"""`rangewatch export RUN FILE`: a run as an HTML report, or a slice of it as CSV, Parquet or Arrow."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from rangewatch.client import Client, Run, ServerError, Unavailable
from rangewatch.client.connection import Query
from rangewatch.client.server_api import add_arguments, find_run, write_line
from rangewatch.core.command_parser import ERROR, SERVER_ENVIRONMENT, CommandParser, command_parser
from rangewatch.report import Refused, page

SUFFIXES = {".html": "html", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}
MIB = 1 << 20


def main(argv: Sequence[str]) -> int:
    """Write the file; 0, or 2 for an error."""
    options = parser().parse_args(argv)
    try:
        return _export(options)
    except (ServerError, ImportError) as error:
        write_line(sys.stderr, f"rangewatch export: {error}")
    except OSError as error:
        write_line(sys.stderr, f"rangewatch export: {error.filename or options.file}: {error.strerror}")
    return 2


def parser() -> CommandParser:
    """What the command takes."""
    made = command_parser(
        "export",
        "Write a run to a file: an HTML report that opens with no server, or the values of a slice, a row a cell, as "
        "CSV, Parquet or Arrow. The format follows from the file's ending, or from --format.",
        examples={
            "rangewatch export my-run report.html": "a report to send to somebody",
            "rangewatch export my-run heads.parquet --q lm_head --statistic '*'": "all values of some tensors",
        },
        statuses={0: "the file is written"} | ERROR,
        environment=SERVER_ENVIRONMENT,
    )
    add_arguments(made)
    add = made.add_argument
    add(
        "file",
        type=Path,
        metavar="FILE",
        help="file to write; an existing one is replaced once the download is complete",
    )
    add("--html", action="store_const", const="html", dest="format", help="an HTML report; needs plotly")
    add("--format", choices=tuple(SUFFIXES.values()), help="format (default: by the file's ending)")
    cells = made.add_argument_group("cells of CSV, Parquet and Arrow (docs/api.md: Slices)").add_argument
    cells("--axes", default="step,rank,tensor", help="two of step, rank and tensor, or all (default: %(default)s)")
    cells("--statistic", action="append", help="may repeat; * for all (default: amax)")
    cells("--rank", metavar="RANK", help="3, or 0-7 (default: all)")
    cells("--tensor", metavar="NUMBER", help="17, or 0-99 in call order (default: all)")
    cells("--kind", help="output, grad_output, grad, input, weight, ... (default: all)")
    cells("--q", metavar="TEXT", help="tensors with this in their name (default: all)")
    cells("--start", type=int, metavar="STEP", help="from this step on (default: the first)")
    cells("--stop", type=int, metavar="STEP", help="before this step (default: after the last)")
    cells("--columns", type=int, metavar="N", help="merge steps to about so many columns (default: every step)")
    return made


def _export(options: argparse.Namespace) -> int:
    kind = options.format or SUFFIXES.get(options.file.suffix.lower())
    if kind is None:
        raise ServerError(f"what is {options.file.name!r} to be? End it in {', '.join(SUFFIXES)}, or give --format")
    run = Client(options.url).run(find_run(options.url, options.run)["id"])
    if kind == "html":
        _written(options.file, lambda file: _write(file, (piece.encode() for piece in page(_Answers(run)))))
    else:
        _written(options.file, lambda file: _write(file, run.exported(kind, _query(options))))
    write_line(sys.stdout, f"{options.file}: run {run.name}, {options.file.stat().st_size / MIB:.1f} MiB")
    return 0


class _Answers:
    """The server's, for the report."""

    def __init__(self, run: Run) -> None:
        self._run, self.name = run, run.name

    def get(self, path: str, query: Query | None = None) -> Any:
        """Raises `Refused`, and `Unavailable` where there is no server, and so no report."""
        try:
            return self._run.answer(path, query)
        except Unavailable:
            raise
        except ServerError as error:
            raise Refused(str(error)) from None


def _query(options: argparse.Namespace) -> Query:
    names = ("axes", "rank", "tensor", "kind", "q", "start", "stop", "columns")
    return {name: getattr(options, name) for name in names} | {"statistic": options.statistic or ["amax"]}


def _write(file: IO[bytes], pieces: Iterator[bytes]) -> None:
    """With how much has come, on a terminal."""
    reported = 0
    for piece in pieces:
        file.write(piece)
        if sys.stderr.isatty() and file.tell() - reported >= MIB:
            reported = file.tell()
            sys.stderr.write(f"\r{reported / MIB:.0f} MiB ")
    if reported:
        sys.stderr.write("\r          \r")


def _written(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """All of it or nothing: written beside the file, which it replaces at the end."""
    with tempfile.TemporaryDirectory(prefix=".rangewatch-", dir=path.absolute().parent) as folder:
        whole = Path(folder) / path.name
        with whole.open("xb") as file:
            write(file)
        whole.replace(path)
