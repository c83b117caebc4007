"""Shelf 4: what can be wrong with a run. Each rule is one file with all that is its own: name, severity, title and text
of docs/diagnosis.md, thresholds with the presets' values, what it explains, pages it links to, and remedies.

To add one is its file and an entry here; `python -m tests.faults.make_docs` then makes docs/diagnosis.md anew.

Evidence is read once for all rules, through `query`. Trends use the last 256 single steps of all ranks merged and ask
single ranks only for what was seen there; the whole run is searched at a coarse level first. A finding whose rule
another finding's rule `explains`, of the same rank and not earlier, is shown as its consequence.
"""

from __future__ import annotations

from rangewatch_server.rules.activations import (
    attention_logits,
    dead_activation,
    headroom_trend,
    initial_gain,
    outlier_batch,
    saturated_activation,
)
from rangewatch_server.rules.experts import dead_expert, expert_collapse, overloaded_expert
from rangewatch_server.rules.gradients import (
    adam_moments,
    changed_gradients,
    clip_limit,
    exploding_gradient,
    gradient_underflow,
    kept_gradients,
    underflow_rising,
    vanishing_gradient,
)
from rangewatch_server.rules.importance import label_of
from rangewatch_server.rules.loss import (
    learning_lost,
    loss_plateau,
    loss_spike,
    loss_stuck,
    schedule_begins_high,
    schedule_over,
    schedule_restarted,
    schedule_turned,
    short_spike,
)
from rangewatch_server.rules.loss_scale import (
    clipped_scaled,
    collapse,
    growing_past_use,
    never_grows,
    unexplained_skip,
    unscaled_loss,
)
from rangewatch_server.rules.machine import (
    data_bound,
    gpu_health,
    hang,
    out_of_memory,
    rank_died,
    rank_failed,
    straggler,
)
from rangewatch_server.rules.mesh import (
    batch,
    contradiction,
    dropout,
    gradient_norm,
    not_reduced,
    repeated_layers,
    tied_weights,
    unequal_settings,
)
from rangewatch_server.rules.nonfinite import evaluation_nonfinite, first_nonfinite, inf_by_design, loss_nonfinite
from rangewatch_server.rules.precision import format_in_use, scale_stale, scale_too_small
from rangewatch_server.rules.replicas import mismatch
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold
from rangewatch_server.rules.setup import (
    alike_rows,
    evaluation_mode,
    held_at_zero,
    initial_loss,
    loss_input,
    no_gradient,
    optimizer_settings,
    padding_mask,
    repeated_order,
    repeated_random,
    rounded_updates,
    sequence_axes,
    sorted_classes,
    summed_microbatches,
    target_broadcast,
    untied_weights,
)
from rangewatch_server.rules.updates import unchanged_weights, update_ratio

ALL: tuple[Rule, ...] = (
    first_nonfinite.RULE,
    collapse.RULE,
    never_grows.RULE,
    growing_past_use.RULE,
    unexplained_skip.RULE,
    clipped_scaled.RULE,
    unscaled_loss.RULE,
    gradient_underflow.RULE,
    mismatch.RULE,
    unequal_settings.RULE,
    contradiction.RULE,
    not_reduced.RULE,
    batch.RULE,
    dropout.RULE,
    gradient_norm.RULE,
    tied_weights.RULE,
    repeated_layers.RULE,
    rank_died.RULE,
    rank_failed.RULE,
    out_of_memory.RULE,
    hang.RULE,
    gpu_health.RULE,
    straggler.RULE,
    data_bound.RULE,
    outlier_batch.RULE,
    headroom_trend.RULE,
    underflow_rising.RULE,
    format_in_use.RULE,
    exploding_gradient.RULE,
    changed_gradients.RULE,
    clip_limit.RULE,
    kept_gradients.RULE,
    vanishing_gradient.RULE,
    update_ratio.RULE,
    adam_moments.RULE,
    unchanged_weights.RULE,
    dead_activation.RULE,
    saturated_activation.RULE,
    attention_logits.RULE,
    initial_gain.RULE,
    scale_stale.RULE,
    scale_too_small.RULE,
    expert_collapse.RULE,
    dead_expert.RULE,
    overloaded_expert.RULE,
    initial_loss.RULE,
    loss_input.RULE,
    alike_rows.RULE,
    target_broadcast.RULE,
    sequence_axes.RULE,
    untied_weights.RULE,
    optimizer_settings.RULE,
    evaluation_mode.RULE,
    rounded_updates.RULE,
    held_at_zero.RULE,
    no_gradient.RULE,
    summed_microbatches.RULE,
    repeated_order.RULE,
    repeated_random.RULE,
    sorted_classes.RULE,
    padding_mask.RULE,
    loss_nonfinite.RULE,
    evaluation_nonfinite.RULE,
    loss_spike.RULE,
    learning_lost.RULE,
    schedule_restarted.RULE,
    schedule_turned.RULE,
    schedule_begins_high.RULE,
    schedule_over.RULE,
    loss_stuck.RULE,
    short_spike.RULE,
    loss_plateau.RULE,
    inf_by_design.RULE,
)

BY_NAME = {rule.name: rule for rule in ALL}


def label(finding: Finding) -> str:
    """What it is called in a few words, wherever it is shown."""
    rule = BY_NAME.get(finding.rule)
    return label_of(finding, None if rule is None else rule.title)


__all__ = ["ALL", "BY_NAME", "Finding", "Remedy", "Rule", "Threshold", "label"]
