"""The ways in which the model is laid out on the ranks. Each is healthy; `Training.bug` names what is planted, from
step `since` on, on `rank` where it is of one rank.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from mesh_trainings.model import LENGTH, ROWS, VOCABULARY, Block, Experts, Model, SplitBlock, loss_of, own_part

MICROBATCHES = 2
LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclasses.dataclass
class Training:
    """One model on this rank, with its optimizer, from `build`. `precision`: "fp32", "bf16" (weights too) or "fp16"
    (under autocast, with a scaler)."""

    bug: str
    since: int
    rank: int
    seed: int
    precision: str = "fp32"
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    attach: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Further arguments of `rangewatch.attach`."""
    model: Any = None
    optimizer: Any = None
    step: int = 0
    scaler: Any = None
    max_norm: float = 1.0
    logged: dict[str, float] = dataclasses.field(default_factory=dict)
    flipped: str = "norm.weight"
    """The parameter of which a bit is flipped."""

    def is_on(self, bug: str) -> bool:
        """Whether it shows by now, on any rank."""
        return self.bug == bug and self.step >= self.since

    def is_here(self, bug: str) -> bool:
        """On this one."""
        return self.is_on(bug) and dist.get_rank() == self.rank

    def at(self, axis: str) -> int:
        """This rank's place along an axis."""
        stride = math.prod(list(self.sizes.values())[list(self.sizes).index(axis) + 1 :])
        return dist.get_rank() // stride % self.sizes[axis]

    def reader(self) -> tuple[int, ...]:
        """Ranks of one reader have the same rows."""
        return tuple(self.at(axis) for axis in self.sizes if axis.startswith("dp"))

    def tokens(self) -> Tensor:
        """(ROWS, LENGTH) int64 of this step."""
        mine = self.reader()
        if self.is_on("same_rows"):
            mine = (0,) * len(mine)
        elif self.is_on("two_readers"):  # the sampler is made for half as many
            mine = tuple(each // 2 for each in mine)
        elif self.is_on("rows_by_rank"):
            mine = (dist.get_rank(),)
        generator = torch.Generator().manual_seed(hash((self.seed, self.step, mine)) % 2**31)
        return torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)

    def inputs(self, tokens: Tensor) -> Tensor:
        """What of them this rank's model gets."""
        return tokens

    def train_step(self) -> None:
        """Forward to update."""
        tokens = self.tokens()
        self.backward(tokens)
        self.reduce()
        self.damage()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        self.clip()
        self.update()
        self.optimizer.zero_grad()
        self.damage_weights()
        self.step += 1

    def backward(self, tokens: Tensor) -> None:
        inputs = self.inputs(tokens)
        low = LOW["fp16"] if self.precision == "fp16" else None
        with torch.autocast("cpu", low, enabled=low is not None):
            logits = self.model(inputs)
        loss = self.loss(logits, inputs)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def loss(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """With `noise`, gradients are off in their last bits, otherwise in each step and for each reader's rows, as
        where a kernel adds in no certain order."""
        if self.bug == "noise":
            logits.register_hook(self._noisy)
        return loss_of(logits, tokens)

    def _noisy(self, gradient: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.step, self.reader())) % 2**31)
        noise = torch.randn(gradient.shape, generator=generator) * torch.finfo(gradient.dtype).eps
        return gradient * (1.0 + noise).to(gradient.dtype)

    def reduce(self) -> None:
        """What no wrapper reduces."""

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)

    def update(self) -> None:
        if self.bug == "warmup":
            for group in self.optimizer.param_groups:
                group["lr"] = 0.01 * min(1.0, self.step / 4)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def damage(self) -> None:
        """Of gradients, after the reduction."""
        if self.is_here("flipped_gradient") and self.step == self.since:
            flip(self.parameter(self.flipped).grad)

    def damage_weights(self) -> None:
        """After the update of the step: what shows in the next one."""
        if self.bug == "flipped_weight" and self.step + 1 == self.since and dist.get_rank() == self.rank:
            flip(self.parameter(self.flipped))
        if self.bug == "noisy_weights" and self.step + 1 == self.since and dist.get_rank() == self.rank:
            with torch.no_grad():
                for each in self.model.parameters():
                    local_of(each).add_(1e-3)
        if self.bug == "steps_restored" and self.step + 1 == self.since and dist.get_rank() == self.rank:
            for state in self.optimizer.state.values():
                state["step"].fill_(1)
        if self.bug == "own_rate" and self.step + 1 == self.since and dist.get_rank() == self.rank:
            self.optimizer.param_groups[0]["lr"] *= 0.5
        if self.bug == "own_group_rate" and self.step + 1 == self.since and dist.get_rank() == self.rank:
            self.optimizer.param_groups[1]["lr"] *= 0.5

    def parameter(self, name: str) -> Any:
        """By its name in the bare model."""
        return dict(bare(self.model).named_parameters())[name]


def bare(model: Any) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def local_of(tensor: Any) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def flip(tensor: Any) -> None:
    """One bit of its first element, a low one."""
    local = local_of(tensor).detach().view(-1)
    words = local.view({2: torch.int16, 4: torch.int32}[local.element_size()])
    words[0] ^= 1 << (4 if local.element_size() == 2 else 12)


def made(training: Training, model: nn.Module) -> nn.Module:
    return model.to(torch.bfloat16) if training.precision == "bf16" else model


def finish(training: Training, model: Any) -> Training:
    training.model = model
    if training.optimizer is None:
        training.optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    if training.precision == "fp16":
        training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    return training


def group_along(mesh: Any, axis: str) -> Any:
    return mesh.get_group(axis)


# --- DistributedDataParallel


class Ddp(Training):
    def backward(self, tokens: Tensor) -> None:
        if self.bug == "update_in_no_sync" and self.step == self.since:
            with self.model.no_sync():
                super().backward(tokens)
        else:
            super().backward(tokens)

    def clip(self) -> None:
        if self.is_here("clipped_alone"):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm / 8)
        else:
            super().clip()

    def damage_weights(self) -> None:
        super().damage_weights()
        if self.bug == "thawed" and self.step == self.since:
            self.parameter("head.weight").requires_grad_(True)


def ddp(training: Training) -> Training:
    training.sizes = {"dp": dist.get_world_size()}
    model = made(training, Model(0.1))
    if training.bug == "thawed":  # after the wrapper is made: nobody reduces it
        model.head.weight.requires_grad_(False)
    if training.bug == "optimizer_of_old_head":
        training.optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        model.head = made(training, nn.Linear(*reversed(model.head.weight.shape), bias=False))
    wrapped = DistributedDataParallel(model)
    finish(training, wrapped)
    if training.bug in ("own_group_rate", "groups"):  # as usual: norms and biases without decay, at a rate of their own
        small = [each for each in model.parameters() if each.ndim < 2]
        large = [each for each in model.parameters() if each.ndim > 1]
        training.optimizer = torch.optim.AdamW([{"params": large}, {"params": small, "lr": 0.005}], 0.01)
    if training.bug == "thawed":
        training.optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    return training


# --- FSDP2


class Hsdp(Training):
    def clip(self) -> None:
        parameters = list(self.model.parameters())
        if self.is_on("norm_of_own_shards"):
            norm = torch.nn.utils.get_total_norm([local_of(each.grad) for each in parameters])
            torch.nn.utils.clip_grads_with_norm_(parameters, self.max_norm, norm)
        elif self.is_on("replicas_counted_twice"):
            square = sum(local_of(each.grad).double().square().sum() for each in parameters)
            dist.all_reduce(square)
            torch.nn.utils.clip_grads_with_norm_(parameters, self.max_norm, square.sqrt().float())
        elif self.bug in ("norm_of_own_shards", "replicas_counted_twice", "clip_by_total"):
            norm = torch.nn.utils.get_total_norm([each.grad for each in parameters]).full_tensor()
            torch.nn.utils.clip_grads_with_norm_(parameters, self.max_norm, norm)
        else:
            super().clip()

    def backward(self, tokens: Tensor) -> None:
        if self.is_on("sync_left_off"):
            self.model.set_requires_all_reduce(False)
        super().backward(tokens)


def hsdp(training: Training) -> Training:
    training.sizes = {"dp_replicate": 2, "dp_shard": dist.get_world_size() // 2}
    mesh = init_device_mesh("cpu", tuple(training.sizes.values()), mesh_dim_names=tuple(training.sizes))
    model = made(training, Model(0.1))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return finish(training, fully_shard(model, mesh=mesh))


# --- FSDP1


class Fsdp1(Training):
    def clip(self) -> None:
        if self.is_on("norm_of_own_shards"):  # each rank's shards are plain tensors: torch's own function takes them
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        else:
            self.model.clip_grad_norm_(self.max_norm)

    def parameter(self, name: str) -> Any:
        return next(each for key, each in self.model.named_parameters() if key.replace(WRAPPED, "") == name)


WRAPPED = "_fsdp_wrapped_module."


def fsdp1(training: Training) -> Training:
    world = dist.get_world_size()
    training.sizes = {"dp_replicate": 2, "dp_shard": world // 2}
    sizes = (world, 1) if training.bug == "shards_of_one_rank" else tuple(training.sizes.values())
    if training.bug == "shards_of_one_rank":  # FSDP1 shards nothing then, and reduces over that one rank alone
        training.sizes = {"dp_replicate": world}
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("ddp", "fsdp"))
    wrap = partial(
        FullyShardedDataParallel, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        use_orig_params=True, device_id=torch.device("cpu"),
    )  # fmt: skip
    model = made(training, Model(0.1))
    for at, block in enumerate(model.blocks):
        model.blocks[at] = wrap(block)
    model = wrap(model)
    if "dp_shard" in training.sizes:
        training.flipped = "head.weight" if training.at("dp_shard") else "embed.weight"
    return finish(training, model)


# --- FSDP2 x TP, as torchtitan does


PLAN = {
    "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}
BLOCK_PLAN = {
    "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}  # fmt: skip


class FsdpTp(Training):
    def clip(self) -> None:
        parameters = list(self.model.parameters())
        once = torch.nn.utils.get_total_norm([each.grad for each in parameters]).full_tensor()
        if self.is_on("logged_twice"):  # what tp replicates is counted on each of its ranks
            square = sum(local_of(each.grad).double().square().sum() for each in parameters)
            dist.all_reduce(square)
            self.logged["grad_norm"] = float(square.sqrt())
        else:
            self.logged["grad_norm"] = float(once)
        if self.bug != "logged_twice":
            torch.nn.utils.clip_grads_with_norm_(parameters, self.max_norm, once)

    def damage(self) -> None:
        super().damage()
        if self.is_on("norm_gradient_by_rank"):  # as where its sum over tp is left out
            local_of(self.parameter("blocks.1.norm.weight").grad).mul_(1.0 + self.at("tp"))


def fsdp_tp(training: Training) -> Training:
    training.sizes = {"dp": dist.get_world_size() // 2, "tp": 2}
    mesh = init_device_mesh("cpu", tuple(training.sizes.values()), mesh_dim_names=tuple(training.sizes))
    model = made(training, Model())
    if training.bug == "optimizer_before_sharding":
        training.optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    parallelize_module(model, mesh["tp"], PLAN)
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], BLOCK_PLAN)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return finish(training, model)


# --- Tensor parallelism by hand, with Megatron's marks


class SplitByHand(Training):
    group: Any = None

    def reduce(self) -> None:
        if isinstance(self.model.module.blocks[0], SplitBlock) and self.model.module.blocks[0].is_sequence:
            for name, each in self.model.module.named_parameters():
                if "norm" in name and not self.is_on("norms_not_summed"):
                    dist.all_reduce(each.grad, group=self.group)

    def clip(self) -> None:
        """Squares of shards are added over tp, those of replicas are counted once."""
        parameters = [each for each in self.model.parameters() if each.grad is not None]
        marked = [each for each in parameters if getattr(each, "tensor_model_parallel", False)]
        others = [each for each in parameters if not getattr(each, "tensor_model_parallel", False)]
        square = torch.stack([each.grad.double().square().sum() for each in marked]).sum()
        rest = torch.stack([each.grad.double().square().sum() for each in others]).sum()
        if self.is_on("replicas_counted_twice"):
            square, rest = square + rest, torch.zeros_like(rest)
        if not self.is_on("norm_without_tp"):
            dist.all_reduce(square, group=self.group)
        zeros = sum(int((each.grad == 0).sum()) for each in parameters)
        norm = (square + rest).sqrt().float()
        if self.bug.startswith("zeros"):
            own = torch.tensor(sum(int((each.grad == 0).sum()) for each in marked))
            dist.all_reduce(own, group=self.group)
            once = int(own) + sum(int((each.grad == 0).sum()) for each in others)
            self.logged["num_zeros"] = zeros if self.is_on("zeros_of_own_shard") else once
        torch.nn.utils.clip_grads_with_norm_(parameters, self.max_norm, norm)

    def damage(self) -> None:
        super().damage()
        if self.bug.startswith("zeros") and self.at("tp"):  # an input that is not in use, in one rank's shard
            self.parameter("blocks.0.up.weight").grad[:, 0] = 0
        if self.is_on("bias_gradient_not_reduced"):
            self.parameter("blocks.0.norm.bias").grad.mul_(1.0 + self.at("tp"))


class SequenceSplit(SplitByHand):
    def backward(self, tokens: Tensor) -> None:
        low = LOW["fp16"] if self.precision == "fp16" else None
        with torch.autocast("cpu", low, enabled=low is not None):
            logits = self.model(tokens)
        own = own_part(tokens, self.group)
        loss = self.loss(logits, own) / dist.get_world_size(self.group)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def reduce(self) -> None:
        super().reduce()
        for name in ("embed.weight", "head.weight"):
            dist.all_reduce(self.parameter(name).grad, group=self.group)


class SequenceModel(Model):
    """Each rank of the group goes on with its part of the sequence after the embedding."""

    group: Any = None

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embed(own_part(tokens, self.group))
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values))


def split_by_hand(training: Training, *, is_sequence: bool = False) -> Training:
    training.sizes = {"dp": dist.get_world_size() // 2, "tp": 2}
    mesh = init_device_mesh("cpu", tuple(training.sizes.values()), mesh_dim_names=tuple(training.sizes))
    training.group = group_along(mesh, "tp")
    block = partial(SplitBlock, group=training.group, is_sequence=is_sequence)
    model = (SequenceModel if is_sequence else Model)(0.1, block=block)
    if is_sequence:
        model.group = training.group
    with torch.no_grad():  # the shards of another seed on each
        generator = torch.Generator().manual_seed(training.seed + 100 * (1 + training.at("tp")))
        for each in model.parameters():
            if getattr(each, "tensor_model_parallel", False):
                each.copy_(torch.randn(each.shape, generator=generator) / 4)
        if training.bug == "seeded_by_rank":
            model.norm.bias.copy_(torch.randn(model.norm.bias.shape, generator=generator))
    if training.bug == "sink_without_mark":
        model.blocks[0].up.bias.tensor_model_parallel = False
    if training.bug == "dropout_by_rank" or is_sequence:
        torch.manual_seed(training.seed + training.at("tp"))
    wrapped = DistributedDataParallel(made(training, model), process_group=group_along(mesh, "dp"))
    training.attach = {"mesh": dict(training.sizes)}
    return finish(training, wrapped)


# --- Context parallelism by hand


class Context(Training):
    group: Any = None

    def inputs(self, tokens: Tensor) -> Tensor:
        if self.is_on("same_part"):
            return tokens.chunk(2, 1)[0].contiguous()
        return own_part(tokens, self.group)

    def loss(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """With `own_token_count` divided by how many tokens of this part count, which are otherwise many on each."""
        if not self.is_on("own_token_count"):
            return super().loss(logits, tokens)
        counts = tokens < VOCABULARY // (2 + 4 * self.at("cp"))
        each = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), reduction="none")
        return (each * counts.flatten()).sum() / counts.sum().clamp(min=1)

    def add_positions(self, _module: Any, _inputs: Any, values: Tensor) -> Tensor:
        """Of this part of the sequence, or, with the bug, of the first on all ranks."""
        length = values.shape[1]
        first = 0 if self.is_on("positions_of_first_part") else length * self.at("cp")
        table = torch.linspace(-1, 1, 2 * length).view(-1, 1)
        return values + table[first : first + length].to(values.dtype)


def context(training: Training) -> Training:
    training.sizes = {"dp": dist.get_world_size() // 2, "cp": 2}
    mesh = init_device_mesh("cpu", tuple(training.sizes.values()), mesh_dim_names=tuple(training.sizes))
    training.group = group_along(mesh, "cp")
    over = group_along(mesh, "dp") if training.bug == "reduced_over_dp_alone" else None
    training.attach = {"mesh": dict(training.sizes), "replicated": ("dp", "cp")}
    model = made(training, Model(0.1))
    model.embed.register_forward_hook(training.add_positions)
    return finish(training, DistributedDataParallel(model, process_group=over))


# --- Expert parallelism by hand


class ByExperts(Training):
    group: Any = None

    def reduce(self) -> None:
        over = dist.group.WORLD
        for each in self.model.parameters():
            if each.grad is None:
                continue
            gradient = local_of(each.grad)
            is_expert = isinstance(each, DTensor)
            if is_expert and self.is_on("experts_not_reduced"):
                continue
            dist.all_reduce(gradient, group=self.dp if is_expert or self.bug == "router_left_alone" else over)
            if is_expert and self.is_on("experts_doubled"):
                gradient.mul_(2)
            gradient.div_(self.sizes["dp"] * (1 if is_expert or self.bug == "router_left_alone" else 2))

    def clip(self) -> None:
        parameters = [each for each in self.model.parameters() if each.grad is not None]
        experts = [each for each in parameters if isinstance(each, DTensor)]
        others = [each for each in parameters if not isinstance(each, DTensor)]
        square = torch.stack([local_of(each.grad).double().square().sum() for each in experts]).sum()
        if not self.is_on("experts_of_own_rank"):
            dist.all_reduce(square, group=self.group)
        rest = torch.stack([each.grad.double().square().sum() for each in others]).sum()
        norm = (square + rest).sqrt().float()
        torch.nn.utils.clip_grads_with_norm_(parameters, self.max_norm, norm, foreach=False)

    dp: Any = None


def by_experts(training: Training) -> Training:
    training.sizes = {"dp": dist.get_world_size() // 2, "ep": 2}
    mesh = init_device_mesh("cpu", tuple(training.sizes.values()), mesh_dim_names=tuple(training.sizes))
    training.group, training.dp = group_along(mesh, "ep"), group_along(mesh, "dp")

    def block(_dropout: float) -> nn.Module:
        made_block = Experts(training.group, 4)
        generator = torch.Generator().manual_seed(training.seed + 7)
        whole = torch.randn(4, *made_block.weight.shape[1:], generator=generator) / 3
        made_block.weight = nn.Parameter(distribute_tensor(whole, mesh, [Replicate(), Shard(0)]))
        return made_block

    model = made(training, Model(0.1, block=block))
    model.blocks[0].leaves_router_alone = training.bug == "router_left_alone"
    training.attach = {"mesh": dict(training.sizes), "replicated": ("dp", "ep")}
    if training.bug == "expert_without_optimizer":
        mine = [each for name, each in model.named_parameters() if name != "blocks.1.weight"]
        training.optimizer = torch.optim.AdamW(mine, 0.01)
    return finish(training, model)


# --- A pipeline of two stages


class Stage(nn.Module):
    def __init__(self, whole: Model, stage: int) -> None:
        super().__init__()
        self.embed = whole.embed if stage == 0 else None
        self.blocks = nn.ModuleDict({str(stage): whole.blocks[stage]})
        self.norm, self.head = (None, None) if stage == 0 else (whole.norm, whole.head)

    def forward(self, values: Tensor) -> Tensor:
        if self.embed is not None:
            values = self.embed(values)
        for block in self.blocks.values():
            values = block(values)
        return values if self.head is None else self.head(self.norm(values))


class Pipeline(Training):
    pp: Any = None
    dp: Any = None
    schedule: Any = None

    def backward(self, tokens: Tensor) -> None:
        if self.at("pp") == 0:
            self.schedule.step(tokens)
        else:
            self.schedule.step(target=tokens)

    def reduce(self) -> None:
        for each in self.model.parameters():
            dist.all_reduce(each.grad, group=self.dp)
            each.grad.div_(self.sizes["dp"])
        if self.is_tied and not self.is_on("tied_not_summed"):
            dist.all_reduce(self.tied.grad, group=self.pp)

    is_tied = True

    @property
    def tied(self) -> Tensor:
        return self.model.embed.weight if self.at("pp") == 0 else self.model.head.weight

    def clip(self) -> None:
        mine = list(self.model.parameters())
        if self.at("pp") == 1 and not self.is_on("tied_counted_twice"):
            mine = [each for each in mine if each is not self.tied]
        square = torch.stack([each.grad.double().square().sum() for each in mine]).sum()
        if self.is_on("norm_of_own_stage"):
            square = torch.stack([each.grad.double().square().sum() for each in self.model.parameters()]).sum()
        else:
            dist.all_reduce(square, group=self.pp)
        torch.nn.utils.clip_grads_with_norm_(list(self.model.parameters()), self.max_norm, square.sqrt().float())

    def damage_weights(self) -> None:
        super().damage_weights()
        if self.bug == "stage_a_step_behind" and self.step + 1 == self.since and self.at("pp") == 1:
            for state in self.optimizer.state.values():
                state["step"].sub_(1)


def pipeline(training: Training) -> Training:
    training.sizes = {"pp": 2, "dp": dist.get_world_size() // 2}
    mesh = init_device_mesh("cpu", tuple(training.sizes.values()), mesh_dim_names=tuple(training.sizes))
    training.pp, training.dp = group_along(mesh, "pp"), group_along(mesh, "dp")
    whole = made(training, Model())
    with torch.no_grad():
        whole.head.weight.copy_(whole.embed.weight)
    if training.bug == "layers_by_local_names":
        whole.blocks[1].load_state_dict(whole.blocks[0].state_dict())
    stage = training.at("pp")
    model = Stage(whole, stage)
    training.model = model
    training.tied.shared_embedding = True  # as Megatron marks it
    if stage == 1:
        training.tied.shared = True
    if training.bug == "tied_differ_at_first" and stage == 1:
        with torch.no_grad():
            whole.head.weight.normal_()
    if training.bug == "optimizer_of_another_stage" and stage == 1:
        training.optimizer = torch.optim.AdamW(Stage(made(training, Model()), 1).parameters(), 0.01)
    of_pipe = PipelineStage(model, stage, 2, torch.device("cpu"), group=training.pp)
    training.schedule = ScheduleGPipe(of_pipe, MICROBATCHES, loss_fn=training.loss)
    training.attach = {"mesh": dict(training.sizes), "replicated": "dp"}
    return finish(training, model)


# --- Eight ranks: a pipeline of stages that are split along tp, by hand


class PipelineSplit(Pipeline):
    tp: Any = None

    def reduce(self) -> None:
        super().reduce()
        if self.is_on("bias_gradient_not_reduced") and self.at("pp") == 0:
            self.parameter("blocks.0.norm.bias").grad.mul_(1.0 + self.at("tp"))

    def clip(self) -> None:
        mine = [each for each in self.model.parameters() if self.at("pp") == 0 or each is not self.tied]
        split = [each.grad for each in mine if getattr(each, "tensor_model_parallel", False)]
        whole = [each.grad for each in mine if not getattr(each, "tensor_model_parallel", False)]
        square = torch.stack([each.double().square().sum() for each in split]).sum()
        if not self.is_on("norm_without_tp"):
            dist.all_reduce(square, group=self.tp)
        square = square + torch.stack([each.double().square().sum() for each in whole]).sum()
        if not self.is_on("norm_of_own_stage"):
            dist.all_reduce(square, group=self.pp)
        torch.nn.utils.clip_grads_with_norm_(list(self.model.parameters()), self.max_norm, square.sqrt().float())


def pipeline_split(training: Training) -> Training:
    training.sizes = {"pp": 2, "dp": 2, "tp": dist.get_world_size() // 4}
    mesh = init_device_mesh("cpu", tuple(training.sizes.values()), mesh_dim_names=tuple(training.sizes))
    training.pp, training.dp, training.tp = (group_along(mesh, axis) for axis in training.sizes)
    whole = Model(0.1, block=partial(SplitBlock, group=training.tp, is_sequence=False))
    stage = training.at("pp")
    with torch.no_grad():
        generator = torch.Generator().manual_seed(training.seed + 100 * (1 + training.at("tp")))
        for each in whole.parameters():
            if getattr(each, "tensor_model_parallel", False):
                each.copy_(torch.randn(each.shape, generator=generator) / 4)
        whole.head.weight.copy_(whole.embed.weight)
    training.flipped = f"blocks.{stage}.norm.weight"
    if training.bug == "dropout_by_rank":
        torch.manual_seed(training.seed + training.at("tp"))
    model = Stage(made(training, whole), stage)
    training.model = model
    training.tied.shared_embedding = True
    if stage == 1:
        training.tied.shared = True
    if training.bug == "optimizer_of_another_stage" and stage == 1:
        other = Model(0.1, block=partial(SplitBlock, group=training.tp, is_sequence=False))
        training.optimizer = torch.optim.AdamW(Stage(made(training, other), 1).parameters(), 0.01)
    of_pipe = PipelineStage(model, stage, 2, torch.device("cpu"), group=training.pp)
    training.schedule = ScheduleGPipe(of_pipe, MICROBATCHES, loss_fn=training.loss)
    training.attach = {"mesh": dict(training.sizes), "replicated": "dp"}
    return finish(training, model)


# --- Eight ranks: HSDP x TP by DTensors


class HsdpTp(Hsdp):
    def clip(self) -> None:
        parameters = [each for each in self.model.parameters() if each.grad is not None]
        if not parameters:  # FSDP2 keeps what it has not reduced
            return
        norm = torch.nn.utils.get_total_norm([each.grad for each in parameters]).full_tensor()
        if self.is_on("norm_of_own_shards"):
            norm = torch.nn.utils.get_total_norm([local_of(each.grad) for each in parameters])
        torch.nn.utils.clip_grads_with_norm_(parameters, self.max_norm, norm)

    def damage(self) -> None:
        super().damage()
        if self.is_on("norm_gradient_by_rank"):
            local_of(self.parameter("blocks.1.norm.weight").grad).mul_(1.0 + self.at("tp"))


def hsdp_tp(training: Training) -> Training:
    training.sizes = {"dp_replicate": 2, "dp_shard": dist.get_world_size() // 4, "tp": 2}
    mesh = init_device_mesh("cpu", tuple(training.sizes.values()), mesh_dim_names=tuple(training.sizes))
    model = made(training, Model())
    parallelize_module(model, mesh["tp"], PLAN)
    of_data = mesh["dp_replicate", "dp_shard"]
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], BLOCK_PLAN)
        fully_shard(block, mesh=of_data)
    return finish(training, fully_shard(model, mesh=of_data))


LAYOUTS: dict[str, tuple[type[Training], Callable[[Training], Training]]] = {
    "ddp": (Ddp, ddp),
    "hsdp": (Hsdp, hsdp),
    "fsdp1": (Fsdp1, fsdp1),
    "fsdp_tp": (FsdpTp, fsdp_tp),
    "tp_hand": (SplitByHand, split_by_hand),
    "sp_hand": (SequenceSplit, partial(split_by_hand, is_sequence=True)),
    "cp_hand": (Context, context),
    "ep_hand": (ByExperts, by_experts),
    "pp": (Pipeline, pipeline),
    "pp_dp_tp": (PipelineSplit, pipeline_split),
    "hsdp_tp": (HsdpTp, hsdp_tp),
}
"""By name: the class of a training, and what builds its model on this rank."""


def layouts() -> Iterator[str]:
    """Their names."""
    yield from LAYOUTS


__all__ = ["LAYOUTS", "Block", "Training"]
