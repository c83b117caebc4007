"""Which finding comes first, and its label: as verdicts, lists, alerts, notifications and `diagnose` have it.

In: a finding, or the row of its alert. Out: a key to sort by, and a few words.
"""

from __future__ import annotations

from typing import Protocol

from rangewatch_server.rules.rule import SEVERITIES

NONFINITE = "NaN or Inf"
LABELS = {
    "rank_died": "Rank died", "rank_failed": "Rank failed", "out_of_memory": "Out of memory", "hang": "Hung",
    "first_nonfinite": NONFINITE, "loss_nonfinite": NONFINITE, "gpu_health": "GPU trouble",
    "straggler": "Straggler", "replica_mismatch": "Ranks disagree", "unequal_settings": "Ranks disagree",
    "mesh_contradiction": "Mesh", "loss_scale_collapse": "Loss scale",
    "headroom_trend": "Headroom shrinks", "rules_unknown": "Not all known",
}  # fmt: skip
"""By rule; of one that is not here its title."""

ORDER: tuple[tuple[str, ...], ...] = (
    ("rank_died", "rank_failed", "out_of_memory"), ("hang",), ("first_nonfinite", "loss_nonfinite"),
    ("gpu_health",), ("straggler",), (),
    ("replica_mismatch", "unequal_settings", "mesh_contradiction", "batch_along_mesh", "dropout_mismatch",
     "gradient_norm_wrong", "tied_weights_differ", "repeated_layers", "gradients_not_reduced"),
    ("loss_scale_collapse",), ("headroom_trend",),
)  # fmt: skip
"""Rules by what a run needs first: that ranks are there, that it advances, that its numbers are finite, and so on."""

HANG_PLACE, NONFINITE_PLACE = 1, 2
THROTTLED_PLACE = 5
"""A GPU that is only throttled comes after the straggler that is slow for another reason."""


class Ranked(Protocol):
    """What decides how grave a finding is: a finding, or the row of its alert."""

    @property
    def rule(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def step(self) -> int | None: ...


def importance(finding: Ranked) -> tuple[bool, int, int, int, str]:
    """Sorts findings, the gravest first: info at the end, then `ORDER`, then the earliest step.

    A critical finding of a rule that is in none of the groups counts as NaN or Inf does.
    """
    severity = SEVERITIES.index(finding.severity)
    place = next((at for at, names in enumerate(ORDER) if finding.rule in names), None)
    if finding.rule == "gpu_health" and severity > 0:
        place = THROTTLED_PLACE
    if place is None:
        place = NONFINITE_PLACE if severity == 0 else len(ORDER)
    step = finding.step if finding.step is not None else 2**63
    return finding.severity == "info", place, severity, step, finding.rule


def label_of(finding: Ranked, title: str | None) -> str:
    """`title`: its rule's; a rule of a later version has none here."""
    if finding.rule == "gpu_health" and finding.severity == "warning":
        return "GPU throttled"
    return LABELS.get(finding.rule) or title or finding.rule.replace("_", " ").capitalize()
