"""Runs for the pictures of the docs, made by hand and sent to a real server as agents send them: one whose feed-forward
layer loses headroom until it overflows on rank 5, one whose rank 2 keeps the others waiting, and one that hangs.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tests.browser import hand_made_health as health
from tests.server.process import Server
from tests.server.records import batch, opening

from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, Catalogue, Event, RangeRows, RankInfo, SeriesRows, StreamHeader, TensorEntry

Array = NDArray[Any]
RANKS, STEPS, BLOCKS = 8, 400, 6
HOT, BAD_RANK, BAD_STEP = "encoder.block.4.ff.wo", 5, 361
LIMIT_BITS = 16.0  # log2 of float16's largest number, nearly
PARTS = (("attn.q", "Linear"), ("attn.k", "Linear"), ("attn.v", "Linear"), ("attn.o", "Linear"), ("ff.wi", "Linear"),
         ("ff.act", "GELU"), ("ff.wo", "Linear"), ("norm", "LayerNorm"))  # fmt: skip
OVERFLOWS, WAITS, HANGS = "t5-large", "t5-large-slow", "t5-large-stuck"
BEAT_S = 4.0


def send(server: Server) -> dict[str, int]:
    """All of them; their numbers by name."""
    known = _catalogue()
    for rank in range(RANKS):
        _accept(server, _opening(known, rank), _batch(known, rank))
    now_ns = time.time_ns()
    for rank in range(health.RANKS):
        _send_waits(server, rank, now_ns)
        _send_hangs(server, rank, now_ns)
    return {run["name"]: run["id"] for run in server.get("/api/v1/runs")["runs"]}


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
    runs = {OVERFLOWS: (RANKS, _catalogue()), WAITS: (health.RANKS, health.KNOWN), HANGS: (health.RANKS, health.KNOWN)}
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


def _opening(known: Catalogue, rank: int) -> StreamHeader:
    host = f"node{rank // 4}"
    return StreamHeader(RankInfo(OVERFLOWS, rank, RANKS, rank % 4, host, "a", time.time_ns() - 10**11), known)


def _batch(known: Catalogue, rank: int) -> Batch:
    bits, bad = _magnitudes(known, rank)
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
        OVERFLOWS, rank, "a", 0, wire.catalogue_digest(known), RangeRows(step, np.arange(shape[0]), columns),
        _series(rank, step), (),
    )  # fmt: skip


def _magnitudes(known: Catalogue, rank: int) -> tuple[Array, Array]:
    """(tensors, steps): log2 of the largest magnitude, and where Inf was."""
    random = np.random.default_rng(rank)
    tensors, step = len(known.tensors), np.arange(STEPS)
    layer = np.random.default_rng(99).uniform(1.5, 6.5, (tensors, 1))
    wander = np.cumsum(random.normal(0, 0.04, (tensors, STEPS)), axis=1)
    bits = layer + wander + random.normal(0, 0.15, (tensors, STEPS))
    bad = np.zeros((tensors, STEPS))
    for i, each in enumerate(known.tensors):
        if each.fqn.startswith(HOT.rsplit(".", 1)[0]) and each.kind == "output":
            hot = 1.0 if each.fqn == HOT else 0.55
            bits[i] = 4 + hot * 11.2 * (step / BAD_STEP) ** 2 + (0.5 if rank == BAD_RANK else 0.0) + bits[i] / 40
    if rank == BAD_RANK:
        hot_at = next(i for i, each in enumerate(known.tensors) if (each.fqn, each.kind) == (HOT, "output"))
        bad[hot_at:, BAD_STEP] = 1
    bits[:, BAD_STEP + 1 :] = bits[:, BAD_STEP + 1 :] - 0.5
    return np.minimum(bits, LIMIT_BITS - 0.01), bad


def _series(rank: int, step: Array) -> tuple[SeriesRows, ...]:
    random = np.random.default_rng(rank + 100)
    skipped = (step == BAD_STEP).astype(float)
    late = 0.02 * (rank == 3)
    values = {
        "loss": 1.6 + 4.2 * np.exp(-step / 90) + random.normal(0, 0.04, STEPS),
        "loss_scale": 65_536.0 / 2.0 ** np.cumsum(np.roll(skipped, 1)), "skipped_step": skipped, "found_inf": skipped,
        "step_time_s": 0.21 + late + random.gamma(2, 0.004, STEPS), "data_wait_s": 0.004 + late + 0 * step,
        "forward_s": 0.062 + 0 * step, "backward_s": 0.118 + 0 * step, "optimizer_s": 0.015 + 0 * step,
        "other_s": 0.008 + 0 * step, "exposed_comm_s": np.full(STEPS, 0.022 - late),
    }  # fmt: skip
    return tuple(SeriesRows(name, step, np.asarray(each, float)) for name, each in values.items())


def _send_waits(server: Server, rank: int, now_ns: int) -> None:
    series = {
        "loss": 1.0, "step_time_s": 0.2, "forward_s": 0.04, "backward_s": 0.1, "optimizer_s": 0.01, "other_s": 0.002,
        "data_wait_s": 0.03 if rank == health.LATE else 0.001, "exposed_comm_s": 0.0 if rank == health.LATE else 0.03,
    }  # fmt: skip
    said = tuple(map(_plain, health.events(rank, now_ns)))
    _accept(server, opening(health.KNOWN, WAITS, rank, world_size=health.RANKS))
    sent = batch(health.KNOWN, 0, range(health.STEPS), run=WAITS, rank=rank, series=series, events=said)
    samples = (health.collectives(rank), health.card(rank, now_ns), health.host(rank, now_ns))
    plain = (msgspec.structs.replace(each, about=_without_marks(each.about)) for each in samples)
    _accept(server, health.with_samples(sent, *plain))


def _send_hangs(server: Server, rank: int, now_ns: int) -> None:
    at = now_ns - 60 * health.SECOND
    said = (
        Event("hang", at, 10, "no step", health.hang(rank, different=False)),
        Event("stacks", at, 10, "stacks", {"text": health.STACKS}),
    )
    _accept(server, opening(health.KNOWN, HANGS, rank, world_size=health.RANKS))
    sent = batch(health.KNOWN, 0, range(11), run=HANGS, rank=rank, events=said)
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
