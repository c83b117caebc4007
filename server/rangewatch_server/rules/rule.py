"""What a rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rangewatch_server.rules.evidence import Evidence

SEVERITIES = ("critical", "warning", "info")
"""Most important first: the run is broken, it will be or loses something, it is worth knowing."""


class Threshold(msgspec.Struct, frozen=True):
    """A number of a rule that a run may set otherwise."""

    name: str
    default: float
    unit: str
    help: str
    presets: tuple[tuple[str, float], ...] = ()
    """Name of a preset (`rules/presets.py`), and the value by which that other tool judges."""


class Remedy(msgspec.Struct, frozen=True):
    """What to try. `code` is a snippet to paste, "" where there is none; `because` says on which evidence it rests."""

    text: str
    code: str = ""
    because: str = ""


Links = tuple[tuple[str, str], ...]
"""Of pages of the dashboard: name and path."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. `rank`, `step`, `tensor` (a module's or parameter's name) and `kind` are None where it
    is of none in particular.

    `evidence`: short facts, each a sentence. `path`: how it went on from there, in order. `subject` separates findings
    of one rule that lie at one place: the same subject later is the same finding. `links` are the rule's to say.
    """

    rule: str = ""
    severity: str = ""
    rank: int | None = None
    step: int | None = None
    tensor: str | None = None
    kind: str | None = None
    summary: str
    evidence: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    remedy: tuple[Remedy, ...] = ()
    subject: str = ""
    links: Links = ()
    consequences: tuple[str, ...] = ()
    """What other rules found that this explains: their summaries."""
    facts: Mapping[str, Any] = {}
    """Numbers behind the sentences, by name; units in the names."""


Thresholds = Mapping[str, float]


def _no_links(run_id: int, finding: Finding) -> Links:
    return ()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A shelf entry. `check` gives findings without `rule`, `severity` and `links`, which are set from here; a severity
    only where it gives none.

    `explains`: names of rules whose findings are consequences of this one's, when they are not earlier and not of
    another rank.
    """

    name: str
    title: str
    severity: str
    explanation: str
    """What it means and why it matters, for a reader who never saw the run."""
    check: Callable[[Evidence, Thresholds], Iterable[Finding]]
    thresholds: tuple[Threshold, ...] = ()
    explains: tuple[str, ...] = ()
    leads_to: tuple[str, ...] = ()
    """Names of rules whose findings follow from this one's although they weigh more: see `diagnosis.joined`."""
    links: Callable[[int, Finding], Links] = _no_links
    """The pages that show more of a finding of the run of that number. Of the finding's own facts alone, so that an
    alert that was stored long ago leads to where its page is now.
    """

    def limits(self, given: Mapping[str, float] | None = None) -> dict[str, float]:
        """The thresholds' values: the defaults, but for those `given`."""
        values = {each.name: each.default for each in self.thresholds}
        return values | {name: value for name, value in (given or {}).items() if name in values}
