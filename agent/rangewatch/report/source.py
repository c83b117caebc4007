"""Where a report has its answers from: the server's API, over HTTP or in the server itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict


class Refused(Exception):
    """A part that is not answered, and why in a line: the report says so, and goes on without it."""


class Source(Protocol):
    """One run."""

    @property
    def name(self) -> str:
        """Of the run."""

    def get(self, path: str, query: Mapping[str, str | int | Sequence[str]] | None = None) -> Any:
        """The answer of GET /api/v1/runs/{id} and `path` (docs/api.md), decoded. Raises `Refused`; anything else that
        it raises ends the report.
        """


class Remedy(TypedDict):
    text: str
    code: str
    because: str


class _Finding(TypedDict):
    rule: str
    severity: str
    summary: str
    evidence: list[str]
    path: list[str]
    remedy: list[Remedy]
    consequences: list[str]


class Finding(_Finding, total=False):
    """One of GET /api/v1/runs/{id}/diagnosis (docs/api.md). `label`: a few words; an older server does not say it."""

    label: str
    step: int | None


def headline(finding: Finding) -> str:
    """Its label and its summary, as the verdict on the Overview has them."""
    label = finding.get("label")
    return f"{label}. {finding['summary']}" if label else finding["summary"]
