"""Each rank of the live runs as Prometheus gauges, for GET /metrics/ranks: apart from the server's own /metrics, since
names of runs and hosts are labels here. docs/operations.md has the table, docs/grafana.json a dashboard of it.

What is not known has no sample: a rank that reported no loss has no gauge of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator

import numpy as np
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from sqlalchemy import select

from rangewatch_server.core.errors import answers
from rangewatch_server.machines.gpus import watched
from rangewatch_server.numerics.pyramid import SERIES_PART
from rangewatch_server.query.reader import Rank, Reader, RunReader, last_step
from rangewatch_server.query.samples import Latest
from rangewatch_server.routes.dependencies import reading
from rangewatch_server.store import tables

router = APIRouter()

MOST_RUNS = 20
"""Live runs that are listed, the newest."""

MOST_RANKS = 64
"""Ranks of a run whose series are read, the lowest: each costs a read of its own."""

RECENT_STEPS = 16
"""The newest steps, in which the last value of a series and the least headroom are searched for."""

RANK_LABELS = ("run", "rank", "host")
GPU_LABELS = (*RANK_LABELS, "gpu")
RANK_GAUGES = {
    "rangewatch_rank_last_step": "The rank's last step.",
    "rangewatch_rank_silent_seconds": "Since the rank last spoke.",
    "rangewatch_rank_up": "1 while the rank speaks, 0 when it is silent or has ended.",
    "rangewatch_rank_loss_scale": "The newest loss scale.",
    "rangewatch_rank_skipped_steps": "Steps that the loss scaler skipped in the rank's newest process.",
    "rangewatch_rank_least_headroom_bits": f"Least headroom of its tensors in the run's last {RECENT_STEPS} steps.",
    "rangewatch_rank_nonfinite_values": f"NaN and Inf in its tensors in the run's last {RECENT_STEPS} steps.",
    "rangewatch_rank_loss": "The newest loss that was logged.",
    "rangewatch_rank_step_seconds": "Duration of its newest step.",
}
SERIES = {"loss": "rangewatch_rank_loss", "step_time_s": "rangewatch_rank_step_seconds"}
GPU_GAUGES = {
    "temperature_c": ("rangewatch_gpu_temperature_celsius", "Of the GPU's core."),
    "power_w": ("rangewatch_gpu_power_watts", "Power that it draws."),
    "utilization_gpu_percent": ("rangewatch_gpu_utilization_percent", "Share of time in which a kernel ran."),
    "memory_used_bytes": ("rangewatch_gpu_memory_used_bytes", "Memory in use."),
    "memory_total_bytes": ("rangewatch_gpu_memory_total_bytes", "Memory it has."),
    "sm_clock_mhz": ("rangewatch_gpu_sm_clock_mhz", "Clock of its multiprocessors."),
    "throttle_reasons": ("rangewatch_gpu_throttle_reasons", "Bits of NVML's clock event reasons."),
}


@router.get("/metrics/ranks", responses=answers(200, "Prometheus' text format.", "text/plain"))
def rank_metrics(request: Request) -> Response:
    """Each rank of the live runs, in Prometheus' text format."""
    with reading(request) as reader:
        body = text(reader)
    return Response(body, media_type=CONTENT_TYPE_PLAIN_0_0_4, headers={"cache-control": "no-store"})


def text(reader: Reader) -> bytes:
    """The gauges of all live runs, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Reported(families(reader)))
    return generate_latest(registry)


def families(reader: Reader) -> list[GaugeMetricFamily]:
    """The gauges of all live runs."""
    named = {
        name: GaugeMetricFamily(name, documentation, labels=RANK_LABELS) for name, documentation in RANK_GAUGES.items()
    }
    named |= {
        name: GaugeMetricFamily(name, documentation, labels=GPU_LABELS) for name, documentation in GPU_GAUGES.values()
    }
    for run_id in _live(reader):
        run = reader.run(run_id)
        if run is not None:
            _add(named, run)
    return list(named.values())


class _Reported:
    """What `generate_latest` asks a collector for."""

    def __init__(self, families: Iterable[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._families


def _live(reader: Reader) -> list[int]:
    """Runs of which a rank spoke lately, the newest first."""
    streams = tables.streams.c
    seen = select(streams.run_id).where(streams.last_seen_ns > time.time_ns() - reader.live_ns).distinct()
    shown = select(tables.runs.c.id).where(tables.runs.c.id.in_(seen), tables.runs.c.deleted_ns.is_(None))
    return list(reader.connection.execute(shown.order_by(tables.runs.c.id.desc()).limit(MOST_RUNS)).scalars())


def _add(families: dict[str, GaugeMetricFamily], run: RunReader) -> None:
    labels = {number: (run.name, str(number), rank.info.host) for number, rank in run.ranks.items()}
    for number, rank in run.ranks.items():
        for name, value in _of_rank(run, rank):
            families[name].add_metric(labels[number], value)
    for number, name, value in (*_numerics(run), *_series(run)):
        families[name].add_metric(labels[number], value)
    for card in watched(run):
        for column, (name, _) in GPU_GAUGES.items():
            value = card.columns.get(column, math.nan)
            if math.isfinite(value):
                families[name].add_metric((*labels[card.rank], _card_name(card)), value)


def _of_rank(run: RunReader, rank: Rank) -> Iterator[tuple[str, float]]:
    step = last_step(rank)
    if step is not None:
        yield "rangewatch_rank_last_step", step
    yield "rangewatch_rank_silent_seconds", max(0.0, (run.now_ns - rank.row.last_seen_ns) / 1e9)
    yield "rangewatch_rank_up", float(run.is_live(rank))
    if rank.row.loss_scale_last is not None:
        yield "rangewatch_rank_loss_scale", rank.row.loss_scale_last
        yield "rangewatch_rank_skipped_steps", rank.row.skipped_steps


def _numerics(run: RunReader) -> Iterator[tuple[int, str, float]]:
    """Of every rank at once."""
    if run.last_step is None:
        return
    ranks, stop = sorted(run.ranks), run.last_step + 1
    wanted = ("observed", "bits", "nan_count", "inf_count")
    columns = run.by_rank(ranks, 0, max(0, stop - RECENT_STEPS), stop, wanted).columns
    bits, bad, observed = (
        values.reshape(len(ranks), -1)
        for values in (columns["bits"], columns["nan_count"] + columns["inf_count"], columns["observed"])
    )
    for place, rank in enumerate(ranks):
        seen = observed[place] > 0
        if seen.any():
            yield rank, "rangewatch_rank_nonfinite_values", float(bad[place].sum())
            least = float(bits[place][seen].min())
            if math.isfinite(least):
                yield rank, "rangewatch_rank_least_headroom_bits", least


def _series(run: RunReader) -> Iterator[tuple[int, str, float]]:
    """The newest value of each, NaN and Inf too: a loss may be one."""
    known = {name: row for name, row in run.names().series.items() if name in SERIES}
    for number in sorted(run.ranks)[:MOST_RANKS]:
        step = last_step(run.ranks[number])
        if step is None or not known:
            continue
        start, rows = max(0, step + 1 - RECENT_STEPS), np.array(list(known.values()))
        block = run.slice(SERIES_PART, [number], 0, start, step + 1, ("count", "last"), rows)
        for place, name in enumerate(known):
            reported = np.flatnonzero(block.columns["count"][place] > 0)
            if len(reported):
                yield number, SERIES[name], float(block.columns["last"][place][reported[-1]])


def _card_name(card: Latest) -> str:
    index = card.about.get("device_index")
    return str(index) if index is not None else card.key
