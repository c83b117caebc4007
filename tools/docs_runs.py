"""Runs for the pictures of the docs, made by hand and sent to a real server as agents send them: one whose feed-forward
layer loses headroom until it overflows on rank 5, one whose rank 2 keeps the others waiting, one that hangs, one of
1,024 ranks that wait for one, one with a throttled GPU, one that is well, one with experts, and one with what-if
readings.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tests.browser import hand_made_health as health
from tests.server import expert_batches, scale_batches, whatif_batches
from tests.server.process import Server
from tests.server.records import batch, opening
from tests.server.rules.test_axis_replicas import mesh

from rangewatch import statistics, wire
from rangewatch.commands.demo.children import free_port
from rangewatch.wire.events import event
from rangewatch.wire.records import (
    Batch,
    Catalogue,
    Event,
    RangeRows,
    RankInfo,
    Samples,
    SeriesRows,
    StreamHeader,
    TensorEntry,
)

Array = NDArray[Any]
RANKS, STEPS, BLOCKS = 8, 400, 6
HOT, BAD_RANK, BAD_STEP = "encoder.block.4.ff.wo", 5, 361
LIMIT_BITS = 16.0  # log2 of float16's largest number, nearly
PARTS = (("attn.q", "Linear"), ("attn.k", "Linear"), ("attn.v", "Linear"), ("attn.o", "Linear"), ("ff.wi", "Linear"),
         ("ff.act", "GELU"), ("ff.wo", "Linear"), ("norm", "LayerNorm"))  # fmt: skip
OVERFLOWS, WAITS, HANGS, THROTTLED, WELL = (
    "t5-large",
    "t5-large-slow",
    "t5-large-stuck",
    "t5-large-hot",
    "t5-large-bs64",
)
ROUTED, READ, SCALED, DIES_AT = "mixtral-tiny", "llama-bf16", "llama-fp8", 240
MESH = {"pp": 16, "dp": 8, "tp": 8}
EIGHT = "pp_dp_tp bias_gradient_not_reduced 0 fp32"
"""A training of `bench/mesh.py` on eight gloo ranks, and so called there."""
STRAGGLES, MANY, LATE_RANK, LATE_FROM, WAIT_S = "gpt-13b", 1_024, 619, 20, 0.09
ALERTED = (OVERFLOWS, HANGS, STRAGGLES, THROTTLED, ROUTED, SCALED)
"""Those that the rules have something to say of."""
BEAT_S = 4.0


def send(server: Server) -> dict[str, int]:
    """All of them; their numbers by name."""
    known, now_ns = _catalogue(), time.time_ns()
    with ThreadPoolExecutor(16) as pool:  # many are committed at once
        list(pool.map(lambda rank: _accept(server, *_straggles(rank, now_ns)), range(MANY)))
    for rank in range(RANKS):
        _accept(server, _opening(known, OVERFLOWS, rank), _batch(known, OVERFLOWS, rank, _magnitudes(known, rank)))
        _accept(server, _opening(known, WELL, rank), _well(known, rank, now_ns))
    for rank in range(health.RANKS):
        _send_waits(server, rank, now_ns)
        _send_hangs(server, rank, now_ns)
    _accept(server, *map(_without_groups, health.late(THROTTLED, now_ns, is_hot=True, loss=_loss(7, health.LASTING))))
    accept = partial(_accept, server)
    expert_batches.send(accept, _loads(STEPS), run=ROUTED, steps=STEPS)
    lost = {
        (0, "mxfp4"): {"flushed_count": 240, "error_sq": 60.0}, (1, "mxfp4"): {"flushed_count": 310, "error_sq": 90.0},
        (1, "mxfp6_e2m3"): {"error_sq": 40.0}, (1, "e4m3_tensor"): {"flushed_count": 120, "error_sq": 45.0},
        (2, "nvfp4"): {"saturated_count": 9, "error_sq": 38.0},
    }  # fmt: skip
    whatif_batches.send(accept, lost, run=READ)
    _send_scales(accept)
    for run, known, incarnation, steps in (
        (ROUTED, expert_batches.KNOWN, "a0", STEPS),
        (READ, whatif_batches.KNOWN, "a", 20),
        (SCALED, scale_batches.KNOWN, "a0", STEPS),
    ):
        over = (Event("finished", now_ns, steps - 1),)
        _accept(server, batch(known, 1, range(0), run=run, incarnation=incarnation, events=over))
    return {run["name"]: run["id"] for run in server.get("/api/v1/runs")["runs"]}


def _send_scales(accept: Any) -> None:
    """An input that grows past a scale that is no longer updated, and one whose scale an old spike holds."""
    at = np.arange(STEPS)
    bits = np.random.default_rng(4).normal(-0.2, 0.1, (len(scale_batches.TENSORS), STEPS))
    bits[3] = np.where(at < 250, bits[3], 0.02 * (at - 250))
    bits[5] = np.where((at > 90) & (at < 300), -9.0, bits[5])
    age = np.where((at > 90) & (at < 300), at - 88.0, 1.0)
    ages = np.stack([np.ones(STEPS)] * 5 + [age])
    scale_batches.send(accept, bits, age=ages, run=SCALED, steps=STEPS)


def train_eight(server: Server) -> None:
    """Train the one of eight ranks. Raises `CalledProcessError` where a rank fails."""
    usual = os.environ | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "8", "OMP_NUM_THREADS": "1",
        "RANGEWATCH_WATCHER": "0",
    }  # fmt: skip
    program = Path(__file__).parents[1] / "bench" / "mesh_trainings" / "ranks.py"
    ranks = [
        subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, str(program), server.url, EIGHT], env=usual | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(8)
    ]
    for each in ranks:
        if each.wait():
            raise subprocess.CalledProcessError(each.returncode, each.args)


@contextmanager
def kept_alive(server: Server) -> Iterator[None]:
    """Heartbeats of every rank meanwhile: who says nothing for 15 s is shown as silent."""
    over = threading.Event()
    thread = threading.Thread(target=_heartbeats, args=(server, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _heartbeats(server: Server, over: threading.Event) -> None:
    """Batches without a step, each with the next sequence."""
    runs = {run: (RANKS, _catalogue()) for run in (OVERFLOWS, WELL)}
    runs |= dict.fromkeys((WAITS, HANGS, THROTTLED), (health.RANKS, health.KNOWN))
    for sequence in itertools.count(1):
        for run, (ranks, known) in runs.items():
            for rank in range(ranks):
                _accept(server, batch(known, sequence, range(0), run=run, rank=rank))
        if over.wait(BEAT_S):
            return


def _catalogue() -> Catalogue:
    names = [(f"encoder.block.{block}.{part}", module) for block in range(BLOCKS) for part, module in PARTS]
    outputs = [
        TensorEntry(name, "output", 0, "float16", (8, 128, 512), i, module) for i, (name, module) in enumerate(names)
    ]
    backward = [
        TensorEntry(f"{name}.weight", "grad", 0, "float16", (512, 512), len(names) + i, module)
        for i, (name, module) in enumerate(reversed(names)) if module != "GELU"
    ]  # fmt: skip
    return Catalogue(statistics.ALL, (*outputs, *backward))


def _opening(known: Catalogue, run: str, rank: int) -> StreamHeader:
    host = f"node{rank // 4}"
    return StreamHeader(RankInfo(run, rank, RANKS, rank % 4, host, "a", time.time_ns() - 10**11), known)


def _batch(known: Catalogue, run: str, rank: int, magnitudes: tuple[Array, Array]) -> Batch:
    bits, bad = magnitudes
    step, shape = np.arange(STEPS), bits.shape
    full = np.broadcast_to(step % 20 == 0, shape)
    numel = np.array([[float(np.prod(each.shape))] for each in known.tensors])
    columns = {
        "call_count": np.ones(shape), "numel": np.broadcast_to(numel, shape), "amax": np.exp2(bits),
        "nan_count": np.zeros(shape), "inf_count": bad * 3.0, "full_numel": np.where(full, numel, 0.0),
        "amin": np.where(full, np.exp2(bits - 24), np.inf), "zero_count": np.where(full, numel // 50, 0.0),
        "sum_sq": np.where(full, numel * np.exp2(2 * bits - 8), 0.0),
    }  # fmt: skip
    return Batch(
        run, rank, "a", 0, wire.catalogue_digest(known), RangeRows(step, np.arange(shape[0]), columns),
        _series(rank, step, run == OVERFLOWS), (),
    )  # fmt: skip


def _well(known: Catalogue, rank: int, now_ns: int) -> Batch:
    """A run in which nothing happens, with its cards and its collectives."""
    bits = _wandering(known, rank)
    sent = _batch(known, WELL, rank, (bits, np.zeros(bits.shape)))
    card = health.throttled_card(rank, now_ns, is_hot=False)
    about = card.about | {"host": f"node{rank // 4}", "device_index": rank % 4}
    return health.with_samples(sent, msgspec.structs.replace(card, about=about), _all_reduces(rank, RANKS, STEPS, None))


def _wandering(known: Catalogue, rank: int) -> Array:
    """(tensors, steps): log2 of the largest magnitude, far from the limit."""
    random = np.random.default_rng(rank)
    shape = (len(known.tensors), STEPS)
    layer = np.random.default_rng(99).uniform(1.5, 6.5, (shape[0], 1))
    return layer + np.cumsum(random.normal(0, 0.04, shape), axis=1) + random.normal(0, 0.15, shape)


def _magnitudes(known: Catalogue, rank: int) -> tuple[Array, Array]:
    """(tensors, steps): log2 of the largest magnitude, and where Inf was."""
    step, bits = np.arange(STEPS), _wandering(known, rank)
    bad = np.zeros(bits.shape)
    for i, each in enumerate(known.tensors):
        if each.fqn.startswith(HOT.rsplit(".", 1)[0]) and each.kind == "output":
            hot = 1.0 if each.fqn == HOT else 0.55
            bits[i] = 4 + hot * 11.2 * (step / BAD_STEP) ** 2 + (0.5 if rank == BAD_RANK else 0.0) + bits[i] / 40
    if rank == BAD_RANK:
        hot_at = next(i for i, each in enumerate(known.tensors) if (each.fqn, each.kind) == (HOT, "output"))
        bad[hot_at:, BAD_STEP] = 1
    bits[:, BAD_STEP + 1 :] = bits[:, BAD_STEP + 1 :] - 0.5
    return np.minimum(bits, LIMIT_BITS - 0.01), bad


def _loads(steps: int) -> Array:
    """(routers, experts, steps) of tokens, 200 a step: of the second router one expert dies."""
    random = np.random.default_rng(5)
    shares = np.exp(random.normal(0, 0.12, (2, expert_batches.EXPERTS, steps)))
    shares[1, 2] *= np.clip((DIES_AT - np.arange(steps)) / 120, 0, 1)
    return np.round(200 * shares / shares.sum(axis=1, keepdims=True))


def _loss(seed: int, steps: int) -> Array:
    return 1.6 + 4.2 * np.exp(-np.arange(steps) / 90) + np.random.default_rng(seed).normal(0, 0.04, steps)


def _series(rank: int, step: Array, overflows: bool) -> tuple[SeriesRows, ...]:
    random = np.random.default_rng(rank + 100)
    skipped = ((step == BAD_STEP) & overflows).astype(float)
    late = 0.02 * (rank == 3)
    values = {
        "loss": _loss(rank + 200 + 100 * overflows, STEPS),
        "loss_scale": 65_536.0 / 2.0 ** np.cumsum(np.roll(skipped, 1)), "skipped_step": skipped, "found_inf": skipped,
        "step_time_s": 0.21 + late + random.gamma(2, 0.0005, STEPS), "data_wait_s": 0.004 + late + 0 * step,
        "forward_s": 0.062 + 0 * step, "backward_s": 0.118 + 0 * step, "optimizer_s": 0.015 + 0 * step,
        "other_s": 0.008 + 0 * step, "exposed_comm_s": np.full(STEPS, 0.022 - late),
    }  # fmt: skip
    return tuple(SeriesRows(name, step, np.asarray(each, float)) for name, each in values.items())


def _straggles(rank: int, now_ns: int) -> tuple[StreamHeader, Batch]:
    """Of 1,024 ranks one whose backward is slower from step 20 on: all the others wait for it."""
    steps = health.LASTING
    is_late = np.arange(steps) >= LATE_FROM
    late_s = WAIT_S * is_late * (rank == LATE_RANK)
    comm_s = 0.012 + WAIT_S * is_late * (rank != LATE_RANK)
    series = {
        "loss": _loss(rank, steps), "forward_s": 0.09, "backward_s": 0.2 + late_s, "optimizer_s": 0.02,
        "other_s": 0.004, "data_wait_s": 0.001, "exposed_comm_s": comm_s, "step_time_s": 0.327 + WAIT_S * is_late,
    }  # fmt: skip
    known, host = health.KNOWN, f"node{rank // 8:03}"
    info = RankInfo(STRAGGLES, rank, MANY, rank % 8, host, "a", now_ns - 10**11, device="cuda")
    amax = {"amax": np.exp2(4 + np.random.default_rng(rank).normal(0, 0.3, (len(known.tensors), steps)))}
    placed = event(mesh(MESH, rank), now_ns, 0)
    over = (placed, Event("finished", now_ns, steps - 1))  # a thousand heartbeats would slow the pictures down
    sent = batch(known, 0, range(steps), amax, run=STRAGGLES, rank=rank, series=series, events=over)
    return StreamHeader(info, known), health.with_samples(sent, _all_reduces(rank, MANY, steps, LATE_RANK))


def _all_reduces(rank: int, ranks: int, steps: int, late: int | None) -> Samples:
    """One a step; from step 20 on all ranks wait for the late one."""
    one, step = np.ones(steps), np.arange(steps)
    waits_s = WAIT_S * (step >= LATE_FROM) * (late is not None and rank != late)
    columns = {
        "step": step, "group": 0 * one, "op": 0 * one, "dtype": 0 * one, "bytes": 2.0**24 * one,
        "sequence": step, "duration_s": 0.012 + 1e-4 * np.random.default_rng(rank).random(steps) + waits_s,
        "bucket": 0 * one, "is_symmetric": one,
    }  # fmt: skip
    group = {"name": "0", "hash": "abc", "ranks": list(range(ranks)), "desc": "default_pg"}
    about = {"groups": [group], "ops": ["all_reduce"], "dtypes": ["float32"], "rung": "ddp"}
    at = 10**18 + step * health.SECOND // 2
    return Samples("collective", "", at, {name: np.asarray(each, float) for name, each in columns.items()}, about)


def _without_groups(message: StreamHeader | Batch) -> StreamHeader | Batch:
    """As it is, without the markup of its groups."""
    if isinstance(message, StreamHeader):
        return message
    plain = (msgspec.structs.replace(each, about=_without_marks(each.about)) for each in message.samples)
    return health.with_samples(message, *plain)


def _send_waits(server: Server, rank: int, now_ns: int) -> None:
    series = {
        "loss": 1.0, "step_time_s": 0.2, "forward_s": 0.04, "backward_s": 0.1, "optimizer_s": 0.01, "other_s": 0.002,
        "data_wait_s": 0.03 if rank == health.LATE else 0.001, "exposed_comm_s": 0.0 if rank == health.LATE else 0.03,
    }  # fmt: skip
    said = tuple(map(_plain, health.events(rank, now_ns)))
    _accept(server, opening(health.KNOWN, WAITS, rank, world_size=health.RANKS))
    sent = batch(health.KNOWN, 0, range(health.STEPS), run=WAITS, rank=rank, series=series, events=said)
    samples = (health.collectives(rank), health.card(rank, now_ns), health.host(rank, now_ns))
    _accept(server, _without_groups(health.with_samples(sent, *samples)))


def _send_hangs(server: Server, rank: int, now_ns: int) -> None:
    at = now_ns - 60 * health.SECOND
    said = (
        Event("hang", at, 10, "no step", health.hang(rank, different=False)),
        Event("stacks", at, 10, "stacks", {"text": health.STACKS}),
    )
    _accept(server, opening(health.KNOWN, HANGS, rank, world_size=health.RANKS))
    series = {"loss": _loss(rank, 11), "step_time_s": 0.21}
    sent = batch(health.KNOWN, 0, range(11), run=HANGS, rank=rank, series=series, events=said)
    _accept(server, health.with_samples(sent, health.host(rank, now_ns)))


def _plain(event: Event) -> Event:
    return msgspec.structs.replace(event, message=_without_marks(event.message), data=_without_marks(event.data))


def _without_marks(value: Any) -> Any:
    """Those runs hold markup, for tests; a picture should not."""
    if isinstance(value, str):
        return value.replace(health.MARK, "").strip() or "none"
    if isinstance(value, dict):
        return {_without_marks(key): _without_marks(each) for key, each in value.items() if key != health.MARK}
    return [_without_marks(each) for each in value] if isinstance(value, list | tuple) else value


def _accept(server: Server, *messages: StreamHeader | Batch) -> None:
    for message in messages:
        health.accept(server, message)
