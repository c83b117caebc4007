"""One rank of several that is at fault: gloo, DistributedDataParallel."""

from __future__ import annotations

import random
import time
from typing import Any

import torch

from tests.faults.cases.overflow import BF16, HALF
from tests.faults.families import fsdp, nanogpt
from tests.faults.fault import Job, Plant, fault, planted
from tests.faults.models import MLP, Batch, Transformer, cross_entropy, rows, tokens

AT = 27
LATE = ("straggler",)  # on a busy machine a rank may well be
BAD = {"rule": "first_nonfinite", "kind": "output", "step": AT, "also": LATE}


def overflowing(job: Job, culprit: int) -> None:
    data = rows(100 * job.seed + job.rank)

    def batch(step: int) -> Batch:
        x, y = data(step)
        return (x * 1e6 if step == AT and job.rank == culprit else x), y

    job.train(MLP(), batch, cross_entropy, 45, dtype=HALF, collect=("collectives",))


@fault(**BAD, origin="forward range", tensor="up", rank=1, ranks=2, words=("Rank 0 got it through the all_reduce",))
def one_of_two_ranks_overflows(job: Job) -> None:
    overflowing(job, 1)


@fault(**BAD, origin="forward range", tensor="up", rank=2, ranks=4, soak=True)
def one_of_four_ranks_overflows(job: Job) -> None:
    overflowing(job, 2)


def with_nan(job: Job, culprit: int) -> None:
    model, data = Transformer(), tokens(100 * job.seed + job.rank)

    def spoil(step: int) -> None:
        if step == AT and job.rank == culprit:
            with torch.no_grad():
                model.blocks[1].ff_in.weight.view(-1)[7] = float("nan")

    job.train(model, data, cross_entropy, 45, dtype=BF16, before=spoil, collect=("collectives",))


@fault(**BAD, origin="weight", tensor="blocks.1.ff_in", rank=0, ranks=2)
def weight_of_one_of_two_ranks_is_nan(job: Job) -> None:
    with_nan(job, 0)


@fault(**BAD, origin="weight", tensor="blocks.1.ff_in", rank=3, ranks=4, soak=True)
def weight_of_one_of_four_ranks_is_nan(job: Job) -> None:
    with_nan(job, 3)


@fault("replica_mismatch", tensor="wo.weight", rank=1, step=AT, ranks=4, soak=True, also=LATE)
def bit_of_one_of_four_replicas_flips(job: Job) -> None:
    model = MLP()

    def flip(step: int) -> None:
        if step == AT and job.rank == 1:
            bits = model.wo.weight.detach().view(-1).view(torch.int32)
            bits[job.seed] ^= 1 << random.Random(job.seed).randrange(31)

    job.train(model, rows(100 * job.seed + job.rank), cross_entropy, 45, before=flip, replica_every=1)


@fault("straggler", rank=2, ranks=4, words=("rank 2",), soak=True)
def one_of_four_ranks_is_slow(job: Job) -> None:
    def late(step: int) -> None:
        time.sleep(0.04 if job.rank == 2 else 0.002)

    job.train(MLP(), rows(job.rank), cross_entropy, 100, before=late, collect=("collectives",))


ALL = (
    one_of_two_ranks_overflows, weight_of_one_of_two_ranks_is_nan, one_of_four_ranks_overflows,
    weight_of_one_of_four_ranks_is_nan, bit_of_one_of_four_replicas_flips, one_of_four_ranks_is_slow,
)  # fmt: skip


TWO = {"ranks": 2, "also": ("straggler", "loss_nonfinite", "exploding_gradient", "loss_spike")}
NOT_THEM = (r"[Mm]ask", "tensors of the checkpoint", "bfloat16")
COLLECT = {"collect": ("collectives",)}


def on(job: Job, rank: int, step: int, change: Any) -> Any:
    return lambda now, value: change(value) if job.rank == rank and now == step else value


@planted(
    "backward_arithmetic",
    "first_nonfinite",
    "loss_scale_collapse",
    "loss_scale_unexplained_skip",
    least="info",
    rank=1,
    step=60,
    place=r"(h\.[01]|wte|wpe)\b.*",
    against=(*NOT_THEM, "learning rate"),
    **TWO,
)
def gradient_of_one_of_two_ranks_overflows_once(job: Job) -> None:
    """float16 with a scaler, which skips the step on both."""

    def inside(step: int, name: str, value: torch.Tensor) -> torch.Tensor:
        if step == 60 and name == "h.1.mlp" and job.rank == 1:
            value = value * 1.0
            value.register_hook(lambda grad: grad * 1e30)
        return value

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=400)
    nanogpt.train(job, 200, plant=Plant(inside=inside), dtype=HALF, scaler=lambda: scaler, **COLLECT)


@planted("replicas", "replica_mismatch", rank=None, step=range(40, 45), against=("learning rate", *NOT_THEM[:1]), **TWO)
def replicas_part_at_step_40(job: Job) -> None:
    def weights(step: int, model: torch.nn.Module) -> None:
        if step == 40 and job.rank == 1:
            with torch.no_grad():
                model.h[0].mlp.c_fc.weight.add_(1e-3)  # type: ignore[index, union-attr]

    nanogpt.train(job, 200, plant=Plant(weights=weights), replica_every=1, **COLLECT)


# DDP reads a hook's annotations, and refuses those that are text: these have none.
def unsynced(state, bucket):  # type: ignore[no-untyped-def]
    """A hook for communication that forgets to communicate."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@planted(
    "replicas",
    "replica_mismatch",
    rank=None,
    step=range(0, 4),
    against=("learning rate", "Test the GPU", *NOT_THEM[:1]),
    **TWO,
)
def gradients_are_never_reduced(job: Job) -> None:
    nanogpt.train(job, 200, hook=unsynced, replica_every=1, **COLLECT)


@planted("communication", "first_nonfinite", rank=None, step=range(90, 92), against=("learning rate", *NOT_THEM), **TWO)
def gradient_is_corrupted_before_the_all_reduce(job: Job) -> None:
    """On one rank, in the bucket: what its backward made was finite, and what comes of it is alike on all ranks."""
    calls = {"step": 0}

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        if calls["step"] == 90 and job.rank == 1 and bucket.index() == 0:
            bucket.buffer().view(-1)[3] = float("nan")
        done = torch.distributed.all_reduce(bucket.buffer().div_(job.ranks), async_op=True).get_future()
        return done.then(lambda each: each.value()[0])

    plant = Plant(weights=lambda step, model: calls.update(step=step))
    nanogpt.train(job, 200, plant=plant, hook=hook, **COLLECT)


@planted(
    "communication",
    "gradients_changed",
    "exploding_gradient",
    "loss_spike",
    "first_nonfinite",
    rank=None,
    step=range(90, 96),
    against=NOT_THEM,
    **TWO,
)
def gradient_of_one_rank_is_huge_in_the_all_reduce(job: Job) -> None:
    calls = {"step": 0}

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        if 90 <= calls["step"] < 98 and job.rank == 1:
            bucket.buffer().mul_(1e12)
        done = torch.distributed.all_reduce(bucket.buffer().div_(job.ranks), async_op=True).get_future()
        return done.then(lambda each: each.value()[0])

    plant = Plant(weights=lambda step, model: calls.update(step=step))
    nanogpt.train(job, 200, plant=plant, hook=hook, **COLLECT)


@planted(
    "learning_rate",
    "first_nonfinite",
    "loss_spike",
    "exploding_gradient",
    "headroom_trend",
    step=range(50, 56),
    against=NOT_THEM,
    **TWO,
)
def sharded_model_with_lr_1e12_at_step_50(job: Job) -> None:
    fsdp.train(job, 150, plant=Plant(rate=lambda step, lr: 1e12 if step == 50 else lr), **COLLECT)


def spoiled_shard(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model.layers[1].feed_forward.w2.weight.to_local().view(-1)[5] = float("nan")  # type: ignore[index, union-attr]


@planted(
    "weight",
    "first_nonfinite",
    place=r"layers\.1\b.*",
    step=range(70, 72),
    against=("learning rate", r"[Mm]ask"),
    **TWO,
)
def shard_of_one_rank_is_nan(job: Job) -> None:
    fsdp.train(job, 150, plant=Plant(weights=on(job, 1, 70, spoiled_shard)), **COLLECT)


@planted(
    "backward_arithmetic",
    "first_nonfinite",
    rank=1,
    place=r"(layers\.[01]|tok_embeddings|positions)\b.*",
    step=80,
    against=("learning rate", *NOT_THEM),
    **TWO,
)
def backward_of_one_shard_divides_by_zero(job: Job) -> None:
    def inside(step: int, name: str, value: torch.Tensor) -> torch.Tensor:
        if step == 80 and name == "layers.1" and job.rank == 1:
            return value + (value - value.detach()).abs().sqrt()
        return value

    fsdp.train(job, 150, plant=Plant(inside=inside), **COLLECT)


@planted(
    "crash",
    "rank_died",
    "rank_failed",
    rank=1,
    step=range(59, 62),
    ends=True,
    against=("learning rate", "out of memory"),
    **TWO,
)
def one_of_two_ranks_raises(job: Job) -> None:
    def batch(step: int, batch: Any) -> Any:
        if step == 60 and job.rank == 1:
            raise IndexError("index 412 is out of range of the dataset")
        return batch

    nanogpt.train(job, 200, plant=Plant(batch=batch), **COLLECT)


SCRIPTS = (
    gradient_of_one_of_two_ranks_overflows_once, replicas_part_at_step_40, gradients_are_never_reduced,
    gradient_is_corrupted_before_the_all_reduce, gradient_of_one_rank_is_huge_in_the_all_reduce,
    sharded_model_with_lr_1e12_at_step_50, shard_of_one_rank_is_nan, backward_of_one_shard_divides_by_zero,
    one_of_two_ranks_raises,
)  # fmt: skip
