"""Shelf 4: what can be wrong with a run. Each rule is one file; its name, thresholds and words make docs/diagnosis.md.

To add one is its file and one line here.
"""

from __future__ import annotations

from rangewatch_server.rules import (
    attention_logits,
    data_bound,
    dead_activation,
    exploding_gradient,
    first_nonfinite,
    gpu_health,
    gradient_underflow,
    hang,
    headroom_trend,
    loss_nonfinite,
    loss_plateau,
    loss_scale_collapse,
    loss_scale_growing_past_use,
    loss_scale_never_grows,
    loss_spike,
    out_of_memory,
    rank_died,
    replica_mismatch,
    saturated_activation,
    straggler,
    unchanged_weights,
    underflow_rising,
    update_ratio,
    vanishing_gradient,
)
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold

ALL: tuple[Rule, ...] = (
    first_nonfinite.RULE,
    loss_scale_collapse.RULE,
    loss_scale_never_grows.RULE,
    loss_scale_growing_past_use.RULE,
    gradient_underflow.RULE,
    replica_mismatch.RULE,
    rank_died.RULE,
    out_of_memory.RULE,
    hang.RULE,
    gpu_health.RULE,
    straggler.RULE,
    data_bound.RULE,
    headroom_trend.RULE,
    underflow_rising.RULE,
    exploding_gradient.RULE,
    vanishing_gradient.RULE,
    update_ratio.RULE,
    unchanged_weights.RULE,
    dead_activation.RULE,
    saturated_activation.RULE,
    attention_logits.RULE,
    loss_nonfinite.RULE,
    loss_spike.RULE,
    loss_plateau.RULE,
)

BY_NAME = {rule.name: rule for rule in ALL}

__all__ = ["ALL", "BY_NAME", "Finding", "Remedy", "Rule", "Threshold"]
