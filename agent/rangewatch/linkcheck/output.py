"""What the user gets: progress while it runs, then the report, the JSON, and the post to the dashboard."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rangewatch.linkcheck import post, report
from rangewatch.server_api import write_line

BEGIN_S = time.monotonic()
LOG_LINES = 12


def open_streams() -> None:
    """Where the caller closed standard streams, open the null device in their place: pipes would get their numbers."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(lowest)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def say(line: str) -> None:
    """A line to standard error; a reader that has gone away ends no check."""
    _written(sys.stderr, [line])


def _written(stream: TextIO, lines: Iterable[str]) -> str:
    """Write all; why that did not go, else ""."""
    try:
        for line in lines:
            write_line(stream, line)
        stream.flush()
    except OSError as error:
        # What is buffered would be tried again at exit, and change the exit status.
        os.dup2(nothing := os.open(os.devnull, os.O_WRONLY), stream.fileno())
        os.close(nothing)
        return error.strerror or str(error)
    return ""


class Output(NamedTuple):
    """`json`: a file, "-" for standard output (the report then goes to standard error), or None."""

    json: str | None
    url: str | None
    token: str | None
    run: str

    def tell(self, line: str) -> None:
        """A line of progress."""
        say(f"{time.monotonic() - BEGIN_S:6.1f} s  {line}")

    def finish(self, result: dict[str, Any]) -> int:
        """Write and post; the exit status."""
        stream = sys.stderr if self.json == "-" else sys.stdout
        width = shutil.get_terminal_size().columns if stream.isatty() else None
        failures = [_written(stream, report.text(result, width)), self._write(result)]
        _written(sys.stderr, _logs(result))
        for each in filter(None, failures):
            say(f"rangewatch linkcheck: the result cannot be written: {each}")
        is_out = self._post(result) and not any(failures)
        return 1 if not result["ok"] else 0 if is_out else 2

    def _write(self, result: dict[str, Any]) -> str:
        """Why the JSON could not be written, else ""."""
        text = json.dumps(result, indent=1)
        if self.json == "-":
            return _written(sys.stdout, text.splitlines())
        if self.json is not None:
            try:
                Path(self.json).write_text(text + "\n")
            except OSError as error:
                return str(error)
        return ""

    def _post(self, result: dict[str, Any]) -> bool:
        if self.url is None:
            return True
        try:
            post.post(self.url, self.token, self.run, result)
        except post.NotPosted as error:
            say(f"rangewatch linkcheck: {error}")
            return False
        self.tell(f"posted to {self.url} as run {self.run}")
        return True


def _logs(result: dict[str, Any]) -> Iterable[str]:
    for each in [*result["ranks"], *result["pairs"]]:
        if each["log"]:
            yield f"printed by rank {each['rank']}:" if "rank" in each else f"printed by {each['a']}-{each['b']}:"
            yield from (f"  {line}" for line in each["log"].splitlines()[-LOG_LINES:])
