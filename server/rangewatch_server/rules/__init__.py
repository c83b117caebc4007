"""Shelf 4: what can be wrong with a run. Each rule is one file; its name, thresholds and words make docs/diagnosis.md.

To add one is its file and one line here.

Evidence is read once for all rules, through `query`. Trends use the last 256 single steps of all ranks merged and ask
single ranks only for what was seen there; the whole run is searched at a coarse level first. A finding whose rule
another finding's rule `explains`, of the same rank and not earlier, is shown as its consequence.
"""

from __future__ import annotations

from rangewatch_server.rules.activations import attention_logits, dead_activation, headroom_trend, saturated_activation
from rangewatch_server.rules.gradients import (
    exploding_gradient,
    gradient_underflow,
    unchanged_weights,
    underflow_rising,
    update_ratio,
    vanishing_gradient,
)
from rangewatch_server.rules.loss import loss_plateau, loss_spike
from rangewatch_server.rules.loss_scale import collapse, growing_past_use, never_grows
from rangewatch_server.rules.machine import data_bound, gpu_health, hang, out_of_memory, rank_died, straggler
from rangewatch_server.rules.nonfinite import first_nonfinite, loss_nonfinite
from rangewatch_server.rules.replicas import mismatch
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold

ALL: tuple[Rule, ...] = (
    first_nonfinite.RULE,
    collapse.RULE,
    never_grows.RULE,
    growing_past_use.RULE,
    gradient_underflow.RULE,
    mismatch.RULE,
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
