"""One rank of several that is at fault: gloo, DistributedDataParallel."""

from __future__ import annotations

import random
import time

import torch

from tests.faults.cases.overflow import BF16, HALF
from tests.faults.fault import Job, fault
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
