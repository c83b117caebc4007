"""Silences: what is not sent, and until when. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

import msgspec

from rangewatch_server.rules import Finding


class Silence(msgspec.Struct, frozen=True):
    """Findings of a run (None: of all), of a rule ("": of all), of modules that fit a pattern ("": of all)."""

    id: int
    run_id: int | None
    rule: str
    tensor: str
    until_ns: int
    reason: str = ""
    created_by: str = ""
    created_ns: int = 0

    def covers(self, run_id: int, finding: Finding, now_ns: int) -> bool:
        """Whether it keeps this one quiet now."""
        return (
            now_ns < self.until_ns
            and self.run_id in (None, run_id)
            and self.rule in ("", finding.rule)
            and (not self.tensor or fnmatch.fnmatchcase(finding.tensor or "", self.tensor))
        )


def silenced(silences: Iterable[Silence], run_id: int, finding: Finding, now_ns: int) -> Silence | None:
    """The first silence that covers the finding."""
    return next((each for each in silences if each.covers(run_id, finding, now_ns)), None)
