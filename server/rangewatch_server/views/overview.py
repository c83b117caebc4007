"""A run in words and numbers: its state, its ranks, and how near it came to overflow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from rangewatch.statistics.sparse import is_sparse
from rangewatch.wire.events import ACCOUNTS, SPOOL_DAMAGED
from rangewatch.wire.records import KINDS, Statistic
from rangewatch_server.collectives import hang_state
from rangewatch_server.figures import quantities
from rangewatch_server.figures.base import Params, grid, label
from rangewatch_server.figures.heatmaps.ranks import summary_cells
from rangewatch_server.figures.lines import series_columns
from rangewatch_server.machines import deaths, mesh
from rangewatch_server.machines.mesh import Mesh, world_size
from rangewatch_server.numerics.headroom import SATURATED_BITS, State
from rangewatch_server.numerics.pyramid import SUMMARY
from rangewatch_server.numerics.whole import whole_sum
from rangewatch_server.query.reader import Rank, RunReader, last_step
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.nonfinite.case import Bad
from rangewatch_server.rules.nonfinite.search import first_bad, first_bad_of_skipped
from rangewatch_server.store import alerts, run_metadata
from rangewatch_server.store.exit_state import DIED, FAILED, INTERRUPTED, TERMINATED
from rangewatch_server.views.extremes import Place, locate
from rangewatch_server.views.goodput import goodput, mfu
from rangewatch_server.views.verdict import verdict

SPARKLINE_COLUMNS = 60
MOST_REASON = 300  # characters of why a run ended
RECENT_STEPS = 20  # the step time shown is the mean of these


def run_line(run: RunReader) -> dict[str, Any]:
    """A run as the list of runs shows it."""
    return rows_line(run) | {
        "skipped_steps": skipped_steps(run), "least_headroom": least_headroom(run), "sparkline": sparkline(run),
    }  # fmt: skip


def rows_line(run: RunReader) -> dict[str, Any]:
    """What the rows of its processes say of a run, without a look at what they recorded."""
    rows = [rank.row for rank in run.ranks.values()]
    scales = [scale for rank in run.ranks.values() if (scale := _loss_scale(rank)) is not None]
    size, now = world_size(run), state(run)
    oldest = [row for rank in run.ranks.values() for row in rank.rows]
    return {
        "id": run.id, "name": run.name, "state": now, "reason": _reason(run, now),
        "ranks_reporting": sum(_reports(run, rank, size) for rank in run.ranks.values()),
        "world_size": size, "first_step": run.first_step, "last_step": run.last_step,
        "loss_scale": min(scales, default=None),
        "loss_scale_first": next((row.loss_scale_first for row in oldest if row.loss_scale_first is not None), None),
        "skipped_steps": max((row.skipped_steps for row in rows), default=0),
        "started_ns": min((row.started_ns for row in oldest), default=run.created_ns),
        "last_seen_ns": max((row.last_seen_ns for row in rows), default=run.created_ns),
        "least_headroom": None, "sparkline": [],
    }  # fmt: skip


def run_detail(run: RunReader) -> dict[str, Any]:
    """A run as its own page shows it."""
    first, skipped, summary = first_overflow(run), first_skipped(run), run_line(run)
    trouble, hang = _trouble(run), hang_state.finding(run)
    stuck = hang.sentence if hang is not None and hang_state.is_alarm(hang) else None
    hangs = alerts.hung(run.connection, [run.id]) | ({run.id} if stuck is not None else set())
    ended, stands = deaths.ended(run), mesh.mesh_of(run)
    return (
        summary
        | run_metadata.shown(run.about)
        | {
            "state": shown_state(summary["state"], hangs),
            "note": run.about.note,
            "alerts": alerts.standing_counts(run.connection, [run.id]).get(run.id, {}),
            "ranks": [_rank(run, rank, trouble, stands) for rank in run.ranks.values()],
            "mesh": mesh.summary(stands),
            "missing_ranks": [rank for rank in range(min(world_size(run), 4096)) if rank not in run.ranks],
            "verdict": verdict(run, summary["least_headroom"], summary["skipped_steps"], first, skipped, stuck),
            "hang": None if hang is None else hang.sentence,
            "death": deaths.sentence(ended),
            "deaths": deaths.deaths(run, ended),
            "first_overflow": first,
            "first_skipped": skipped,
            "kinds": kinds(run),
            "series": sorted(run.names().series),
            "step_time_s": step_time_s(run),
            "goodput": _once(run, "goodput", 400, lambda: (goodput(run),))[0],
            "mfu": mfu(run),
            "statistics": [_statistic(each) for each in run.statistics() if not is_sparse(each.name)],
            "derived": _derived(run),
            "default_statistic": quantities.default(run).name,
        }
    )


def _derived(run: RunReader) -> list[dict[str, str]]:
    """What a heatmap can show of this run; of one that has not said what it records, everything."""
    recorded = {each.name for each in run.statistics()}
    choices = quantities.choices(recorded, kinds(run))
    return [{"name": each.name, "title": each.title, "aka": each.aka, "help": each.help} for each in choices]


def _loss_scale(rank: Rank) -> float | None:
    """The latest that any incarnation had; a restarted one has none before its first step."""
    return next((row.loss_scale_last for row in reversed(rank.rows) if row.loss_scale_last is not None), None)


def state(run: RunReader) -> str:
    """`empty`, `live`, `finished`, `failed`, `died`, `interrupted`, `terminated` or `stale`, from what the newest
    incarnation of each rank last said: that ranks which died take others with them, which then fail or are stopped.
    """
    states = {rank.row.state for rank in run.ranks.values()}
    if any(run.is_live(rank) for rank in run.ranks.values()):
        return "live" if run.last_step is not None else "empty"
    worst = next((each for each in (DIED, FAILED, INTERRUPTED, TERMINATED) if each in states), None)
    if worst is not None:
        return worst
    return "finished" if states == {"finished"} else "stale"


def shown_state(state: str, hangs: Collection[int]) -> str:
    """The same, and `hung` for one that hangs and has not ended. `hangs`: the runs that do, this one or none."""
    return "hung" if state in ("live", "stale") and hangs else state


def _reason(run: RunReader, state: str) -> str | None:
    """Why a run that failed, or whose ranks died, has ended: in one line, and not all of a long one."""
    if state == FAILED:
        first = next(iter(run.newest_events([FAILED])), None)
        text = None if first is None or not first.message else f"Rank {first.rank}: {first.message}"
    elif state in (DIED, TERMINATED):
        text = deaths.sentence(deaths.ended(run))
    else:
        text = None
    line = " ".join((text or "").split())
    return (line if len(line) <= MOST_REASON else f"{line[: MOST_REASON - 1]}…") or None


def _reports(run: RunReader, rank: Rank, size: int) -> bool:
    return rank.rank < size and (run.is_live(rank) or rank.row.state == "finished")


def kinds(run: RunReader) -> list[str]:
    """The kinds of tensors that the run has."""
    return [KINDS[row] for row in np.unique(run.names().tensors.kind_rows)]


def least_headroom(run: RunReader) -> dict[str, Any] | None:
    """The worst that any rank holds at a step that is shown: a NaN or Inf, else the least headroom."""
    bad = first_overflow(run)
    if bad is not None:
        name = label(run.tensor(bad["tensor"]))
        return {"bits": None, "state": bad["what"], "label": name} | {k: bad[k] for k in ("step", "rank", "tensor")}
    places = (place for rank in run.ranks.values() for place in _least_places(run, rank))
    worst = min(places, key=lambda place: (place.bits, place.step), default=None)
    if worst is None:
        return None
    shown = {"step": worst.step, "rank": worst.rank, "tensor": worst.tensor, "label": label(run.tensor(worst.tensor))}
    return {"bits": worst.bits, "state": worst.state} | shown


def _least_places(run: RunReader, rank: Rank) -> Iterator[Place]:
    """Without their labels: of a thousand ranks one is shown."""
    for row, end in rank.visible():
        if row.least_step is not None and row.least_step < end:
            state = "saturated" if row.least_bits < SATURATED_BITS else "value"
            yield Place(row.least_step, rank.rank, row.least_tensor, "", state, row.least_bits)
        elif row.least_step is not None:  # the worst was overwritten by a restart: look at what is left of it
            place = _locate(run, rank, row.first_step, end)
            if place is not None and place.bits is not None:
                yield place


def first_overflow(run: RunReader) -> dict[str, Any] | None:
    """The first NaN or Inf in order of step and call, over all ranks and all steps that are shown.

    A gradient overflow that the loss scaler skipped is none: that is how loss scaling works.
    """
    if not any(_has_bad(rank) for rank in run.ranks.values()):
        return None
    cached: tuple[dict[str, Any] | None] = _once(run, "first overflow", 200, lambda: (_first_overflow(run),))
    return cached[0]


def first_skipped(run: RunReader) -> dict[str, Any] | None:
    """The first NaN or Inf of the steps that the loss scaler skipped; None where it skipped none, or nothing that was
    recorded held one there.
    """
    if not skipped_steps(run) or not any(_has_bad(rank) for rank in run.ranks.values()):
        return None
    cached: tuple[dict[str, Any] | None] = _once(
        run, "first skipped", 200, lambda: (_place_of(run, first_bad_of_skipped(Evidence(run))),)
    )
    return cached[0]


def _first_overflow(run: RunReader) -> dict[str, Any] | None:
    return _place_of(run, first_bad(Evidence(run)))


def _place_of(run: RunReader, bad: Bad | None) -> dict[str, Any] | None:
    if bad is None:
        return None
    entry = run.tensor(bad.tensor)
    return {
        "step": bad.step, "rank": bad.rank, "tensor": bad.tensor, "fqn": entry.fqn, "kind": entry.kind,
        "index": entry.index, "what": "nan" if bad.nan_count else "inf",
    }  # fmt: skip


def _has_bad(rank: Rank) -> bool:
    return any(row.bad_step is not None and row.bad_step < end for row, end in rank.visible())


def _once(run: RunReader, name: str, size: int, read: Callable[[], Any]) -> Any:
    """What `read` gives, kept until the run has news. `size`: of what is kept, in bytes; never None."""
    rows = tuple((row.id, row.version, row.rewrites) for rank in run.ranks.values() for row in rank.rows)
    key = (run.id, name, rows)
    value = run.reader.summaries.get(key)
    if value is None:
        value = read()
        run.reader.summaries.put(key, value, size)
    return value


def _locate(run: RunReader, rank: Rank, start: int, end: int) -> Place | None:
    return locate(run, [rank.rank], start, end, np.arange(len(run.names().tensors.entries)))


def skipped_steps(run: RunReader) -> int:
    """Steps that the loss scaler skipped, of those that are shown; the most of any rank."""
    counts = [rank.row.skipped_steps if len(rank.visible()) < 2 else _skipped(run, rank) for rank in run.ranks.values()]
    return max(counts, default=0)


def _skipped(run: RunReader, rank: Rank) -> int:
    start, stop = run.first_step or 0, (run.last_step or 0) + 1
    cut = grid(start, stop, SPARKLINE_COLUMNS)
    columns = series_columns(run, Params(start=start, stop=stop, ranks=(rank.rank,)), cut, "skipped_step")
    return whole_sum(columns["sum"])


def sparkline(run: RunReader) -> list[float | None]:
    """About 60 values of least headroom in bits over the run; None where unknown, -1 for a NaN or Inf."""
    if run.first_step is None or run.last_step is None:
        return []
    start, stop = run.first_step, run.last_step + 1
    values: list[float | None] = _once(run, "sparkline", 2_000, lambda: _sparkline(run, start, stop))
    return values


def _sparkline(run: RunReader, start: int, stop: int) -> list[float | None]:
    cut = grid(start, stop, SPARKLINE_COLUMNS)
    wanted = ("observed", "bits", "nan_count", "inf_count")
    block = run.slice(SUMMARY, list(run.ranks), cut.level, start, stop, wanted)
    cells = summary_cells(block).pooled(cut.edges(block.first, block.width), 1)
    bad = (State.INF, State.NAN)
    return [
        -1.0 if each in bad else round(float(bits), 2) if np.isfinite(bits) else None
        for bits, each in zip(cells.bits[0], cells.state[0], strict=True)
    ]


def step_time_s(run: RunReader) -> float | None:
    """Mean of the last steps, over ranks."""
    if run.last_step is None:
        return None
    stop = run.last_step + 1
    start = max(0, stop - RECENT_STEPS)
    params = Params(start=start, stop=stop, ranks=tuple(run.ranks))
    columns = series_columns(run, params, grid(start, stop, RECENT_STEPS), "step_time_s")
    count = float((columns["count"] - columns["nonfinite_count"]).sum())
    return float(columns["sum"].sum()) / count if count else None


def _rank(run: RunReader, rank: Rank, trouble: dict[int, dict[str, Any]], stands: Mesh) -> dict[str, Any]:
    spoken = rank.row.state if rank.row.state != "open" else "live" if run.is_live(rank) else "stale"
    return {
        "rank": rank.rank, "state": spoken, "host": rank.info.host, "local_rank": rank.info.local_rank,
        "world_size": rank.info.world_size, "incarnation": rank.row.ordinal, "last_step": last_step(rank),
        "last_seen_ns": rank.row.last_seen_ns, "device": rank.info.device, "also_live": run.also_live(rank),
        "also_live_hosts": run.also_live_hosts(rank),
        "coordinates": stands.coordinates(rank.rank),
    } | trouble.get(rank.rank, _no_trouble())  # fmt: skip


def _trouble(run: RunReader) -> dict[int, dict[str, Any]]:
    """What agents said of themselves, by rank; each event is the whole account as it was then, so the newest stands."""
    fields = {"dropped": "dropped", "fault": "faults", "not_observed": "not_observed", "not_fused": "not_fused"}
    by_rank: dict[int, dict[str, Any]] = {}
    damaged: dict[int, dict[str, int]] = {}
    for event in run.newest_events([*fields, FAILED, "level", SPOOL_DAMAGED]):
        entry = by_rank.setdefault(event.rank, _no_trouble())
        if event.kind == "level":
            entry["level"] = event.message or None  # "": recorded as it was asked for again
        elif event.kind == FAILED:
            entry["failure"] = event.message
        elif event.kind == SPOOL_DAMAGED:  # by who sent what the rank left, and so beside the rank's own account
            damaged[event.rank] = event.read(ACCOUNTS[SPOOL_DAMAGED]) or {}
        else:
            entry[fields[event.kind]] = event.read(ACCOUNTS[event.kind]) or {}
    for rank, lost in damaged.items():
        own = by_rank[rank]["dropped"]
        by_rank[rank]["dropped"] = own | {reason: own.get(reason, 0) + count for reason, count in lost.items()}
    return by_rank


def _no_trouble() -> dict[str, Any]:
    return {"dropped": {}, "faults": {}, "not_observed": {}, "not_fused": {}, "failure": None, "level": None}


def _statistic(statistic: Statistic) -> dict[str, str]:
    return {"name": statistic.name, "unit": statistic.unit, "merge": statistic.merge, "help": statistic.help}
