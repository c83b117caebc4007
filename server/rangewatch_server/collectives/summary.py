"""What the pages say of a run's collectives: joins stored samples, phases and events to their analysis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.events import CollectiveTiming
from rangewatch_server.collectives.bandwidth import Speed, speeds
from rangewatch_server.collectives.location import PHASES, PhaseSeries
from rangewatch_server.collectives.matching import Block, Matched, match
from rangewatch_server.collectives.onset import with_onset
from rangewatch_server.collectives.reader import SOURCE, Chunk, bucket_names, chunks, searched_range
from rangewatch_server.collectives.records import UNKNOWN, Names
from rangewatch_server.collectives.straggler import Judgement, Verdict, judge
from rangewatch_server.collectives.straggling_host import Hosts
from rangewatch_server.collectives.waits import Waits, waits_of
from rangewatch_server.numerics.outliers import OUTLYING, robust_scores
from rangewatch_server.numerics.pyramid import SERIES_PART
from rangewatch_server.query.reader import RunReader
from rangewatch_server.store.batch_checks import MAX_STEP

Array = NDArray[Any]

MOST_JUDGED = 200_000  # rows of all ranks by which the rule judges: a few tenths of a second to read and match
MOST_PHASED = 64  # ranks whose phases are read to say where a delay lies
NEWEST_STEPS = 64  # in which the newest step of all ranks is searched for
NO_DIFFERENCE_S = 0.2e-3  # a step: who costs the others less does not stand out, however alike all ranks are
MOST_PARAMETERS = 64  # names of one bucket that are shown


def collectives(run: RunReader, start: int, stop: int) -> dict[str, Any]:
    """The answer of docs/api.md for a range of steps."""
    low, high = searched_range(run, start, stop)
    matched = match(chunks(run, low, high - 1)) if low < high else match({rank: [] for rank in run.ranks})
    waits = waits_of(matched)
    judged = judge_with_phases(run, matched, waits)
    is_known = waits.known_count > 0
    return {
        "start": low, "stop": high, "ranks": waits.ranks.tolist(), "sources": list(sources(run)),
        "table": [_speed(each) for each in speeds(matched)], "left_out": waits.left_out,
        "coverage": coverage(waits), "steps": waits.steps.tolist(),
        "cost_to_others_s": _rounded(waits.cost_to_others_s, is_known), "wait_s": _rounded(waits.wait_s, is_known),
        "by_rank": list(_by_rank(waits)), "desyncs": [msgspec.to_builtins(each) for each in matched.desyncs[:20]],
        "verdict": _verdict(judged), "why_no_verdict": None if judged.verdict else judged.reason,
    }  # fmt: skip


def newest_verdict(run: RunReader, start: int, stop: int) -> dict[str, Any] | None:
    """The `verdict` of that answer, of fewer steps where there are many ranks: it is asked for again and again."""
    low, high = searched_range(run, start, stop, MOST_JUDGED)
    if low >= high:
        return None
    matched = match(chunks(run, low, high - 1))
    return _verdict(judge_with_phases(run, matched, waits_of(matched)))


def costs(run: RunReader, start: int, stop: int) -> dict[int, float]:
    """Rank -> what each of the others waits for it a step, in seconds: the mean of the range's last steps."""
    low, high = searched_range(run, start, stop, MOST_JUDGED)
    if low >= high:
        return {}
    waits = waits_of(match(chunks(run, low, high - 1)))
    means = ((rank, _mean(waits.delay_s[place], waits.known_count[place])) for place, rank in enumerate(waits.ranks))
    return {int(rank): mean for rank, mean in means if mean is not None}


def coverage(waits: Waits) -> float | None:
    """Share of the durations that are known; None without collectives."""
    expected = int(waits.expected.sum())
    return float(waits.known.sum() / expected) if expected else None


def judge_with_phases(run: RunReader, matched: Matched, waits: Waits) -> Judgement:
    """Who keeps the others waiting: a rank, else a host. Phases say what it spends the time in."""
    judged = judge(waits)
    if not len(waits.steps):
        return judged
    hosts = Hosts(matched, waits, {number: rank.info.host for number, rank in run.ranks.items()})
    verdict = judged.verdict or _verdict_on_a_host(hosts.judge())
    late = [] if verdict is None else [verdict.rank] if verdict.rank is not None else [*verdict.ranks]
    late = late[: MOST_PHASED // 2]
    chosen = sorted({*sorted(run.ranks)[: MOST_PHASED - len(late)], *late})
    spent = phases(run, chosen, int(waits.steps[0]), int(waits.steps[-1]) + 1)
    judged = judge(waits, spent)
    judged = judged if judged.verdict is not None else hosts.judge(spent) or judged
    if judged.verdict is None:
        return judged
    since = with_onset(run, judged.verdict, int(waits.steps[0]))
    return Judgement(since, since.sentence)


def _verdict_on_a_host(judged: Judgement | None) -> Verdict | None:
    return None if judged is None else judged.verdict


def phases(run: RunReader, ranks: Sequence[int], start: int, stop: int) -> dict[int, PhaseSeries]:
    """Phases of these ranks' steps in [start, stop), as far as they were recorded."""
    known = run.names().series
    names = [name for name in (*PHASES, "step_time_s") if name in known]
    rows = np.sort(np.array([known[name] for name in names], np.int64))
    if not len(rows):
        return {}
    by_rank: dict[int, PhaseSeries] = {}
    for rank in ranks:
        block = run.slice(SERIES_PART, [rank], 0, start, stop, ("count", "last"), rows)
        seconds = np.where(block.columns["count"] > 0, block.columns["last"], np.nan)
        at = {name: seconds[int(np.searchsorted(rows, known[name]))] for name in names}
        by_rank[rank] = PhaseSeries(np.arange(start, stop), at)
    return by_rank


def sources(run: RunReader) -> Iterator[dict[str, Any]]:
    """How each rank times its collectives, as it said last."""
    for event in run.newest_events([CollectiveTiming.KIND]):
        timing = event.read(CollectiveTiming) or CollectiveTiming()
        yield {"rank": event.rank, "rung": timing.rung, "why": timing.why or event.message}


def _by_rank(waits: Waits) -> Iterator[dict[str, Any]]:
    costs_s = [_mean(waits.delay_s[place], waits.known_count[place]) for place in range(len(waits.ranks))]
    scores = robust_scores(np.array([np.nan if each is None else each for each in costs_s]), NO_DIFFERENCE_S)
    for place, rank in enumerate(waits.ranks.tolist()):
        clear = int(waits.clear_count[place].sum())
        yield {
            "rank": rank, "last_share": float(waits.last_count[place].sum() / clear) if clear else None,
            "cost_to_others_s": _mean(waits.cost_to_others_s[place], waits.known_count[place]),
            "cost_s": costs_s[place], "stands_out": bool(scores[place] >= OUTLYING),
            "wait_s": _mean(waits.wait_s[place], waits.known_count[place]),
        }  # fmt: skip


def _mean(values: Array, known: Array) -> float | None:
    """Over the steps in which something is known of the rank; None without any."""
    return float(values[known > 0].mean()) if (known > 0).any() else None


def _rounded(values: Array, is_known: Array) -> list[list[float | None]]:
    """To a microsecond: no clock here resolves less, and a page of 1,024 ranks is half as large. None: not known."""
    return [
        [round(value, 6) if known else None for value, known in zip(row, known_row, strict=True)]
        for row, known_row in zip(values.tolist(), is_known.tolist(), strict=True)
    ]


def _verdict(judged: Judgement) -> dict[str, Any] | None:
    verdict = judged.verdict
    if verdict is None:
        return None
    return {
        "rank": verdict.rank, "host": verdict.host or None, "ranks": verdict.ranks, "class": verdict.kind,
        "where": verdict.where, "cost_s": verdict.cost_s, "share": verdict.share, "since_step": verdict.since_step,
        "text": verdict.sentence, "evidence": _plain(verdict.evidence),
    }  # fmt: skip


def _speed(row: Speed) -> dict[str, Any]:
    return {
        "group": row.group.title, "group_hash": row.group.hash, "ranks": len(row.group.ranks), "op": row.op,
        "size_class_bytes": row.least_bytes, "count": row.count, "timed_count": row.timed_count, "bytes": row.bytes,
        "is_symmetric": row.is_symmetric, "duration_p50_s": row.duration_p50_s, "duration_p99_s": row.duration_p99_s,
        "duration_max_s": row.duration_max_s, "algbw_bytes_per_s": row.algbw, "busbw_bytes_per_s": row.busbw,
        "wait_p50_s": row.wait_p50_s, "wait_p99_s": row.wait_p99_s,
    }  # fmt: skip


def one_step(run: RunReader, step: int | None) -> dict[str, Any]:
    """Every collective of one step, by rank; the last step with records when none is asked for."""
    first, last = run.first_step or 0, run.last_step
    low, high = searched_range(run, 0 if step is None else step, MAX_STEP if step is None else step + 1)
    records = chunks(run, max(low, high - NEWEST_STEPS), high - 1) if low < high else {rank: [] for rank in run.ranks}
    at = _newest_of_all(records, high - 1) if step is None else step
    matched = match(records)
    if any(bucket not in matched.buckets for bucket in _buckets_of(matched, at)):
        names = Names()
        names.add_buckets({"buckets": bucket_names(run, SOURCE, at)})
        matched.buckets = names.buckets | matched.buckets
    calls_by_rank = {
        rank: sorted(_calls(matched, rank, at), key=lambda call: call["began_ns"]) for rank in sorted(run.ranks)
    }
    for calls in calls_by_rank.values():
        begin_ns = calls[0]["began_ns"] if calls else 0
        for call in calls:  # by the rank's own clock: those of two hosts are never compared
            call["begin_s"] = (call.pop("began_ns") - begin_ns) / 1e9
    ranks = [{"rank": rank, "collectives": calls} for rank, calls in calls_by_rank.items()]
    return {
        "step": at if low < high or step is not None else None,
        "ranks": ranks,
        "first_step": first,
        "last_step": last,
    }


def _buckets_of(matched: Matched, step: int) -> set[int]:
    per_block = [block.bucket[(block.step == step) & (block.bucket != UNKNOWN)].tolist() for block in matched.blocks]
    return {bucket for buckets in per_block for bucket in buckets}


def _newest_of_all(records: dict[int, list[Chunk]], newest: int) -> int:
    """The last step that every rank with records has got to: they do not report at once."""
    known = [
        [np.nan_to_num(each.columns["step"], nan=-1).max() for each in chunks if len(each.times_ns)]
        for chunks in records.values()
    ]
    last = [int(max(steps)) for steps in known if steps]
    return max(min(last, default=newest), newest - NEWEST_STEPS + 1)


def _calls(matched: Matched, rank: int, step: int) -> Iterator[dict[str, Any]]:
    for block in matched.blocks:
        for row in np.flatnonzero(block.ranks == rank).tolist():
            for column in np.flatnonzero((block.step == step) & (block.times_ns[row] != UNKNOWN)).tolist():
                yield _call(matched, block, row, column)


def _call(matched: Matched, block: Block, row: int, column: int) -> dict[str, Any]:
    durations_s = block.duration_s[:, column]
    wait_s = durations_s[row] - np.nanmin(durations_s) if block.is_measured[column] else math.nan
    bucket, dtype = int(block.bucket[column]), int(block.dtype[column])
    named = matched.buckets.get(bucket)
    return {
        "group": block.group.title, "op": matched.ops[int(block.op[column])],
        "dtype": matched.dtypes[dtype] if dtype != UNKNOWN else None, "bytes": _number(block.bytes[column]),
        "sequence": int(block.sequence[column]), "began_ns": int(block.times_ns[row, column]),
        "duration_s": _number(durations_s[row]), "wait_s": _number(wait_s),
        "bucket": bucket if bucket != UNKNOWN else None,
        "parameters": [str(name) for name in named[:MOST_PARAMETERS]] if isinstance(named, list | tuple) else [],
        "is_desync": bool(block.is_desync[column]),
    }  # fmt: skip


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has it: no NaN, no numpy number."""
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
