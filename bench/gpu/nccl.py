"""NCCL's collectives of one rank: a row each with its size, a duration where torch times them, and no waiting.

    python bench/gpu/nccl.py [--dry-run]

Durations are held against events of our own around the same calls. `--dry-run`: gloo's, without durations of NCCL.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any

os.environ.setdefault("RANGEWATCH_QUIET", "1")

import torch
import torch.distributed as dist
from checks import Checks, parser
from tests.agent.collectors.ranks import rows_of
from tests.agent.ingest_double import IngestDouble
from torch import nn

import rangewatch
from rangewatch.collectors.collectives.collector import SOURCE

ELEMENTS, SMALL = 1 << 26, 1 << 10
"""256 MiB of float32: some tenths of a millisecond, even where one rank has nothing to exchange."""
STEPS = 3
ROWS_S = 12.0
"""Seconds that the rows are waited for: two dumps of the flight recorder."""
SLACK = 1.5
"""How much longer NCCL's own duration may be than that of our events around it, which do not begin where it does."""


def main() -> int:
    chosen = parser(__doc__).parse_args()
    checks = Checks()
    for timing in ("0", "1"):
        os.environ["TORCH_NCCL_ENABLE_TIMING"] = timing  # read when a process group is made
        with_group(checks, is_timed=timing == "1", is_cuda=not chosen.dry_run)
    return checks.end()


def with_group(checks: Checks, *, is_timed: bool, is_cuda: bool) -> None:
    """All of it in a process group of its own."""
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("nccl" if is_cuda else "gloo", store=store, rank=0, world_size=1)
    ingest = IngestDouble()
    try:
        trained(checks, ingest, is_timed=is_timed, is_cuda=is_cuda)
    finally:
        ingest.stop()
        dist.destroy_process_group()


def trained(checks: Checks, ingest: IngestDouble, *, is_timed: bool, is_cuda: bool) -> None:
    """Steps with a few collectives of known sizes, and what arrived of them."""
    device, elements = ("cuda", ELEMENTS) if is_cuda else ("cpu", SMALL)
    what = f"{'nccl' if is_cuda else 'gloo'}, {'timed' if is_timed else 'not timed'}"
    model = nn.Linear(8, 8, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    large = torch.ones(elements, device=device)
    other = torch.empty_like(large)
    half = torch.ones(elements, device=device, dtype=torch.bfloat16)
    around_ms: list[float] = []
    with rangewatch.attach(model, optimizer, url=ingest.url, run=what) as handle:
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.ones(4, 8, device=device)).sum().backward()
            if is_cuda and step == STEPS - 1:
                torch.cuda.set_sync_debug_mode("error")
            try:
                pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if is_cuda else []
                for event in pair[:1]:
                    event.record()
                dist.all_reduce(large)
                for event in pair[1:]:
                    event.record()
                dist.all_gather_into_tensor(other, large)
                dist.reduce_scatter_tensor(other, large)
                dist.broadcast(half, 0)
                dist.all_to_all_single(other, large)
                optimizer.step()
            finally:
                if is_cuda:
                    torch.cuda.set_sync_debug_mode("default")
            if is_cuda:
                torch.cuda.synchronize()
                around_ms.append(pair[0].elapsed_time(pair[1]))
        until_s = time.monotonic() + ROWS_S
        while time.monotonic() < until_s and len(rows(ingest)) < 5 * STEPS:
            time.sleep(0.1)
        if not is_timed:
            time.sleep(1.0)  # what is said of it comes after the rows
        checks.equal(handle.stats()["dropped"], {}, f"{what}: what was dropped")
    arrived = rows(ingest)
    for name, sent in {
        "all_reduce": 4 * elements, "all_gather": 4 * elements, "reduce_scatter": 4 * elements,
        "broadcast": 2 * elements, "all_to_all": 4 * elements,
    }.items():  # fmt: skip
        of_kind = [row for row in arrived if row["op"] == name]
        checks.equal([row["bytes"] for row in of_kind], [float(sent)] * STEPS, f"{what}: bytes of {name}")
        checks.equal(
            [row["step"] for row in of_kind], [float(step) for step in range(STEPS)], f"{what}: steps of {name}"
        )
    reduced_s = [row["duration_s"] for row in arrived if row["op"] == "all_reduce"]
    if is_cuda and is_timed:
        for row in arrived[1:]:  # the first makes the communicator, and torch may not say how long it took
            is_there = 0.0 < row["duration_s"] < 1.0
            checks.that(is_there, f"{what}: {row['op']} of step {row['step']:.0f} took {row['duration_s']} s")
        for mine_ms, theirs_s in zip(around_ms[1:], reduced_s[1:], strict=False):
            is_like = theirs_s * 1e3 <= SLACK * mine_ms
            checks.that(is_like, f"{what}: all_reduce {theirs_s * 1e3:.3f} ms, events around it {mine_ms:.3f} ms")
    elif is_cuda:
        checks.that(
            all(math.isnan(seconds) for seconds in reduced_s), f"{what}: {reduced_s} s, though torch times none"
        )
        whys = [str(event.data.get("why")) for event in ingest.events("collectives")]
        checks.that(any("TORCH_NCCL_ENABLE_TIMING" in why for why in whys), f"{what}: not said how to time: {whys}")
    checks.figures[what] = {
        "rows": len(arrived), "all_reduce_ms": [round(1e3 * each, 3) for each in reduced_s],
        "events_around_ms": [round(each, 3) for each in around_ms],
        "source": sorted({samples.about["rung"] for samples in sent_samples(ingest)}),
    }  # fmt: skip


def sent_samples(ingest: IngestDouble) -> list[Any]:
    return [samples for batch in ingest.batches for samples in batch.samples if samples.source == SOURCE]


def rows(ingest: IngestDouble) -> list[dict[str, Any]]:
    return sorted((row for each in sent_samples(ingest) for row in rows_of(each)), key=lambda row: row["enqueued_ns"])


if __name__ == "__main__":
    sys.exit(main())
