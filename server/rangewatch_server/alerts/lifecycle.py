"""What becomes of findings from one look to the next: which alerts open, go on, or are over. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping

import msgspec

from rangewatch_server.rules import Finding

GONE_AFTER = 3
"""Looks in a row at which a finding must be missing until its alert is over: one that flickers stays one alert."""


class Open(msgspec.Struct):
    """An alert that stands. `missing`: looks in a row at which its finding was not there."""

    id: int
    finding: Finding
    missing: int = 0


class Change(msgspec.Struct, frozen=True):
    """What one look changes: findings that open, alerts whose finding reads otherwise, and alerts that are over."""

    opened: tuple[tuple[str, Finding], ...]
    changed: tuple[tuple[int, Finding], ...]
    resolved: tuple[int, ...]

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is to be written."""
        return not (self.opened or self.changed or self.resolved)


def identity(found: Finding) -> str:
    """Which finding this is: the same one at a later step, with other numbers, has the same identity."""
    parts = (found.rule, found.rank, found.tensor, found.kind, found.subject)
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def look(standing: Mapping[str, Open], findings: Iterable[Finding], failed: Container[str] = ()) -> Change:
    """Compare what stands, by identity, with what was found now; counts what is missing.

    `failed`: rules that could not be applied. Whether their findings are still there is unknown, so their alerts stay.
    """
    now: dict[str, Finding] = {}
    for each in findings:
        now.setdefault(identity(each), each)
    opened = tuple((key, found) for key, found in now.items() if key not in standing)
    changed: list[tuple[int, Finding]] = []
    resolved: list[int] = []
    for key, alert in standing.items():
        found = now.get(key)
        if found is None and alert.finding.rule in failed:
            continue
        alert.missing = 0 if found is not None else alert.missing + 1
        if found is not None and found != alert.finding:
            changed.append((alert.id, found))
        elif alert.missing >= GONE_AFTER:
            resolved.append(alert.id)
    return Change(opened, tuple(changed), tuple(resolved))
