"""What a part's program says at its end: how many things it checked, which were wrong, and its figures.

The last line of its output is that as JSON; its status is 1 where something was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


class Checks:
    """Counts checks and keeps what failed."""

    def __init__(self) -> None:
        self.count, self.failed = 0, list[str]()
        self.figures: dict[str, Any] = {}
        self.notes: list[str] = []
        """What was not checked, and why."""

    def that(self, is_right: object, what: str) -> bool:
        """Count a check; `what` is kept where it is wrong."""
        self.count += 1
        if not is_right:
            self.failed.append(what)
            print(f"WRONG: {what}", flush=True)
        return bool(is_right)

    def equal(self, value: object, expected: object, what: str) -> bool:
        """The same of two values."""
        return self.that(value == expected, f"{what}: {value!r}, expected {expected!r}")

    def end(self) -> int:
        """Print all of it; the status for `sys.exit`."""
        for note in self.notes:
            print(f"note: {note}")
        print(f"{self.count} checks, {len(self.failed)} wrong")
        whole = {"checks": self.count, "failed": self.failed[:50], "figures": self.figures, "notes": self.notes}
        sys.stdout.flush()
        print(json.dumps(whole), flush=True)
        return int(bool(self.failed))


def parser(description: str | None) -> argparse.ArgumentParser:
    """What all parts understand."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dry-run", action="store_true", help="without a GPU: Triton's interpreter, a CPU, doubles")
    return options
