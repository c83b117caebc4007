"""Bugs of parallel training, each in a layout, with what is to be said of it.

`first`: the step of the finding, counted from the one at which the bug begins; a bug of the start begins at step 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

ALL = "all"
ODD = "odd"
"""Ranks: the one on which it is planted."""


@dataclasses.dataclass(frozen=True)
class Case:
    """`rules`: any of them will do; none where it is known not to be seen. `ranks`: those to be named: `ALL`, `ODD`,
    `"line"` for those that share `axis` with the odd one, or the ranks themselves. `parameter`: a pattern, None where
    there is none. `after`: the public report that it is made after."""

    layout: str
    bug: str
    rules: Sequence[str]
    axis: str | None
    parameter: str | None = None
    ranks: str | Sequence[int] = ALL
    first: int = 0
    is_from_start: bool = False
    after: str = ""

    @property
    def name(self) -> str:
        return f"{self.layout}/{self.bug}"


REPLICAS, SETTINGS = ("replica_mismatch",), ("unequal_settings",)
BATCH, NORM = ("batch_along_mesh",), ("gradient_norm_wrong",)
DROPOUT, TIED = ("dropout_mismatch",), ("tied_weights_differ",)
NOT_REDUCED, UNTRAINED = ("gradients_not_reduced",), ("unchanged_weights",)

MEGATRON = "Megatron-LM#7452"

CASES: tuple[Case, ...] = (
    # DistributedDataParallel
    Case("ddp", "flipped_weight", REPLICAS, "dp", r"norm\.weight", ODD),
    Case("ddp", "flipped_gradient", REPLICAS, "dp", r"norm\.weight", ODD),
    Case("ddp", "noisy_weights", REPLICAS, "dp", r".*", ODD),
    Case("ddp", "update_in_no_sync", REPLICAS, "dp", r".*", ALL),
    Case("ddp", "clipped_alone", (*REPLICAS, *NORM), "dp", r".*", ODD, 0),
    Case("ddp", "thawed", REPLICAS, "dp", r"head\.weight", ALL, 1),
    Case("ddp", "same_rows", BATCH, "dp"),
    Case("ddp", "two_readers", BATCH, "dp"),
    Case("ddp", "own_rate", SETTINGS, "dp", None, ODD),
    Case("ddp", "own_group_rate", SETTINGS, "dp", None, ODD),
    Case("ddp", "steps_restored", SETTINGS, "dp", None, ODD),
    Case("ddp", "optimizer_of_old_head", UNTRAINED, None, r"head\.weight", ALL, 0, True),
    # HSDP
    Case("hsdp", "flipped_weight", REPLICAS, "dp_replicate", r"norm\.weight", "line"),
    Case("hsdp", "sync_left_off", NOT_REDUCED, "dp_replicate", r".*", ALL, 0, after="verl#7493, accelerate#3760"),
    Case("hsdp", "norm_of_own_shards", NORM, "dp_shard", None, ALL),
    Case("hsdp", "replicas_counted_twice", NORM, "dp_replicate", None, ALL),
    Case("hsdp", "same_rows", BATCH, "dp", None, ALL),
    # FSDP1, hybrid, of which parameters are parts of flat ones
    Case("fsdp1", "flipped_weight", REPLICAS, "dp_replicate", r"(embed|head)\.weight", "line"),
    Case("fsdp1", "shards_of_one_rank", REPLICAS, "dp_replicate", r".*", ALL, 0, True, "verl#7493"),
    Case("fsdp1", "norm_of_own_shards", NORM, "dp_shard", None, ALL),
    Case("fsdp1", "same_rows", BATCH, "dp", None, ALL),
    # FSDP2 x TP
    Case("fsdp_tp", "flipped_weight", REPLICAS, "tp", r"norm\.weight", "line"),
    Case("fsdp_tp", "norm_gradient_by_rank", REPLICAS, "tp", r"blocks\.1\.norm\.weight", ALL, after="Automodel#3822"),
    Case("fsdp_tp", "rows_by_rank", BATCH, "tp", None, ALL, 0, after="Automodel#3149"),
    Case("fsdp_tp", "same_rows", BATCH, "dp", None, ALL),
    Case("fsdp_tp", "optimizer_before_sharding", UNTRAINED, None, r".*", ALL, 0, True),
    Case("fsdp_tp", "logged_twice", NORM, "tp", None, ALL, 0, after="NeMo-RL#3788"),
    Case("fsdp_tp", "steps_restored", SETTINGS, None, None, ODD),
    # Tensor parallelism by hand
    Case("tp_hand", "seeded_by_rank", REPLICAS, "tp", r"norm\.bias", ALL, 0, True, "Automodel#1291, #3822"),
    Case("tp_hand", "bias_gradient_not_reduced", REPLICAS, "tp", r"blocks\.0\.norm\.bias", ALL, 0, False,
         MEGATRON + ", finding 11"),
    Case("tp_hand", "sink_without_mark", REPLICAS, "tp", r"blocks\.0\.up\.bias", ALL, 0, True,
         MEGATRON + ", finding 8"),
    Case("tp_hand", "dropout_by_rank", DROPOUT, "tp", r"blocks\..\.dropout", ALL, 0, True),
    Case("tp_hand", "replicas_counted_twice", NORM, "tp", None, ALL, 0, False, "TransformerEngine (ROCm)#715"),
    Case("tp_hand", "norm_without_tp", NORM, "tp", None, ALL),
    Case("tp_hand", "zeros_of_own_shard", NORM, "tp", None, ALL),
    Case("tp_hand", "rows_by_rank", BATCH, "tp", None, ALL),
    # Sequence parallelism by hand
    Case("sp_hand", "norms_not_summed", REPLICAS, "tp", r".*norm\.(weight|bias)", ALL, 0, False, "Megatron-LM#1446"),
    # Context parallelism by hand
    Case("cp_hand", "same_part", BATCH, "cp", None, ALL),
    Case("cp_hand", "reduced_over_dp_alone", REPLICAS, "cp", r".*", ALL, 0, True),
    # Expert parallelism by hand
    Case("ep_hand", "router_left_alone", REPLICAS, "ep", r"blocks\.0\.router\.weight", ALL, 0, True,
         "transformers#48687"),
    Case("ep_hand", "experts_not_reduced", REPLICAS, "dp", r"blocks\..\.weight", ALL),
    Case("ep_hand", "experts_of_own_rank", NORM, "ep", None, ALL, 0, False, "Megatron-LM PR #5916"),
    Case("ep_hand", "expert_without_optimizer", UNTRAINED, None, r"blocks\.1\.weight", ALL, 0, True),
    # A pipeline
    Case("pp", "tied_not_summed", TIED, "pp", r"embed\.weight|head\.weight", ALL, 1),
    Case("pp", "tied_differ_at_first", TIED, "pp", r"embed\.weight|head\.weight", ALL, 0, True),
    Case("pp", "tied_counted_twice", NORM, "pp", None, ALL, 0, False, "Megatron-LM PR #7227"),
    Case("pp", "norm_of_own_stage", NORM, "pp", None, ALL, 0, False, "torchtitan#596"),
    Case("pp", "same_rows", BATCH, "dp", None, (0, 1)),
    Case("pp", "stage_a_step_behind", SETTINGS, "pp", None, ALL, 0),
    Case("pp", "optimizer_of_another_stage", UNTRAINED, None, r".*", (2, 3), 0, True),
    Case("pp", "layers_by_local_names", ("repeated_layers",), "pp", r"blocks\.1", (0, 2), 0, True,
         MEGATRON + ", finding 12"),
    # Replanted, and not seen: no value that the server has contradicts another one
    Case("ep_hand", "experts_doubled", (), None, after="Megatron-LM#6660, PR #7165"),
    Case("cp_hand", "own_token_count", (), None, after=MEGATRON + ", finding 9"),
    Case("cp_hand", "positions_of_first_part", (), None, after="torchtitan#771"),
    # Eight ranks: pipeline x data x tensor parallelism
    Case("pp_dp_tp", "flipped_weight", REPLICAS, "dp", r"blocks\.[01]\.norm\.weight", ODD),
    Case("pp_dp_tp", "bias_gradient_not_reduced", REPLICAS, "dp", r"blocks\.0\.norm\.bias", (0, 1, 2, 3), 0, False,
         MEGATRON + ", finding 11"),
    Case("pp_dp_tp", "same_rows", BATCH, "dp", None, (0, 1, 2, 3)),
    Case("pp_dp_tp", "rows_by_rank", BATCH, "tp", None, (0, 1, 2, 3)),
    Case("pp_dp_tp", "norm_without_tp", NORM, "tp"),
    Case("pp_dp_tp", "norm_of_own_stage", NORM, "pp", None, ALL, 0, False, "torchtitan#596"),
    Case("pp_dp_tp", "tied_not_summed", TIED, "pp", r"embed\.weight|head\.weight", ALL, 1),
    Case("pp_dp_tp", "stage_a_step_behind", SETTINGS, "pp", None, ALL, 0),
    Case("pp_dp_tp", "own_rate", SETTINGS, None, None, ODD),
    Case("pp_dp_tp", "dropout_by_rank", DROPOUT, "tp", r"blocks\..\.dropout", ALL, 0, True),
    Case("pp_dp_tp", "optimizer_of_another_stage", UNTRAINED, None, r".*", (4, 5, 6, 7), 0, True),
    # Eight ranks: HSDP x tensor parallelism
    Case("hsdp_tp", "flipped_weight", REPLICAS, "dp_replicate", r"norm\.weight", ODD),
    Case("hsdp_tp", "sync_left_off", NOT_REDUCED, "dp_replicate", r".*", ALL, 0, after="verl#7493, accelerate#3760"),
    Case("hsdp_tp", "norm_gradient_by_rank", REPLICAS, None, r"blocks\.1\.norm\.weight", ALL, after="Automodel#3822"),
    Case("hsdp_tp", "norm_of_own_shards", NORM, "dp_shard", None, ALL),
    Case("hsdp_tp", "same_rows", BATCH, "dp", None, ALL),
    Case("hsdp_tp", "rows_by_rank", BATCH, "tp", None, ALL),
)  # fmt: skip

BY_NAME = {each.name: each for each in CASES}
