"""What the user gets: progress while it runs, then the report, the JSON, and the post to the dashboard."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from rangewatch.linkcheck import post, report
from rangewatch.server_api import write_line

BEGIN_S = time.monotonic()
LOG_LINES = 12


class Output(NamedTuple):
    """`json`: a file, "-" for standard output (the report then goes to standard error), or None."""

    json: str | None
    url: str | None
    token: str | None
    run: str

    def tell(self, line: str) -> None:
        """A line of progress."""
        write_line(sys.stderr, f"{time.monotonic() - BEGIN_S:6.1f} s  {line}")

    def finish(self, result: dict[str, Any]) -> int:
        """Write and post; the exit status."""
        stream = sys.stderr if self.json == "-" else sys.stdout
        for line in report.text(result):
            write_line(stream, line)
        for each in [*result["ranks"], *result["pairs"]]:
            if each["log"]:
                write_line(sys.stderr, f"printed by rank {each['rank']}:" if "rank" in each else "printed:")
                for line in each["log"].splitlines()[-LOG_LINES:]:
                    write_line(sys.stderr, f"  {line}")
        is_out = self._write(result) and self._post(result)
        return 1 if not result["ok"] else 0 if is_out else 2

    def _write(self, result: dict[str, Any]) -> bool:
        text = json.dumps(result, indent=1) + "\n"
        if self.json == "-":
            sys.stdout.write(text)
        elif self.json is not None:
            try:
                Path(self.json).write_text(text)
            except OSError as error:
                write_line(sys.stderr, f"rangewatch linkcheck: {error}")
                return False
        return True

    def _post(self, result: dict[str, Any]) -> bool:
        if self.url is None:
            return True
        try:
            post.post(self.url, self.token, self.run, result)
        except post.NotPosted as error:
            write_line(sys.stderr, f"rangewatch linkcheck: {error}")
            return False
        self.tell(f"posted to {self.url} as run {self.run}")
        return True
