"""The route of the loss scale's drops, each with its cause: docs/api.md."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from rangewatch.wire.events import Scaler
from rangewatch_server.query.reader import RunReader
from rangewatch_server.routes.dependencies import RunId, Step, answer, reading_run, steps_of
from rangewatch_server.rules.loss_scale import skip_cause
from rangewatch_server.rules.loss_scale.history import Change, History, scalers
from rangewatch_server.rules.loss_scale.skip_cause import Bad, Cause, Layer
from rangewatch_server.views import extremes

router = APIRouter()

MOST_DROPS = 200  # of one reply
TABLE_DROPS = 50  # newest, and as many oldest, that the table of layers is made of
MOST_LAYERS = 100
MOST_LETTERS = 100  # of the name of a scaler's class
MOST_NAMED = 16  # tensors and ranks of a drop that are named; all are counted

Order = Literal["newest", "oldest"]


@router.get("/api/v1/runs/{run_id}/loss_scale")
def show_loss_scale(
    run_id: RunId, request: Request, start: Step = None, stop: Step = None,
    limit: Annotated[int, Query(ge=1, le=MOST_DROPS)] = 50, order: Order = "newest",
) -> Response:  # fmt: skip
    """Every drop of the loss scale with its cause, and the layers that cause them."""
    with reading_run(request, run_id) as run:
        low, high = steps_of(run, start, stop)
        return answer(_loss_scale(run, History(run, low, high, 1 + (run.last_step or 0)), limit, order))


def _loss_scale(run: RunReader, history: History, limit: int, order: Order) -> dict[str, Any]:
    drops = _drops(history, limit + 1, newest=order == "newest")
    page, more = drops[:limit], len(drops) > limit
    # Where to go on: the `stop` of the next page of the newest, the `start` of that of the oldest.
    after = page[-1].step + (order == "oldest") if more else None
    causes = _causes(run, history, page)
    table = _causes(run, history, _ends(history), known=causes)
    settings = {series: _settings(each) for series, each in scalers(run, history.rank).items()}
    return {
        "run": run.name, "start": history.start, "stop": history.stop,
        "scalers": [_scaler(history, name) | {"settings": settings.get(name)} for name in history.scalers],
        "skipped_steps": history.skipped_steps,
        "drops": [_drop(run, each, causes[each.step]) for each in page], "next": after,
        "layers": _layers(run, history, table.values()), "layers_of_drops": len(table),
    }  # fmt: skip


def _settings(scaler: Scaler) -> dict[str, Any]:
    """None for what it did not say."""
    return {
        "class": None if scaler.name is None else scaler.name[:MOST_LETTERS], "growth_factor": scaler.growth_factor,
        "backoff_factor": scaler.backoff_factor, "growth_interval": scaler.growth_interval,
    }  # fmt: skip


def _drops(history: History, most: int, *, newest: bool) -> list[Change]:
    return list(islice((each for each in history.changes(newest=newest) if each.skipped or each.fell), most))


def _ends(history: History) -> list[Change]:
    """The newest drops and the oldest: of a long run the ones between are not examined."""
    ends = [each for newest in (False, True) for each in _drops(history, TABLE_DROPS, newest=newest)]
    return list({each.step: each for each in ends}.values())


def _causes(
    run: RunReader, history: History, drops: Iterable[Change], known: dict[int, Cause] | None = None
) -> dict[int, Cause]:
    """Step -> cause; of a scale that fell without a skip there is nothing to look for."""
    causes = known or {}
    return {
        each.step: causes.get(each.step)
        or (skip_cause.cause_of(run, each.step) if each.skipped else Cause(each.step, "set"))
        for each in drops
    }


def _scaler(history: History, name: str) -> dict[str, Any]:
    columns = history.coarse()
    low, high = columns.low[name], columns.high[name]
    known = [(float(a), float(b)) for a, b in zip(low, high, strict=True) if a == a]
    ends = {"min": min((a for a, _ in known), default=None), "max": max((b for _, b in known), default=None)}
    return {"name": name, **ends, "last": history.last(name)}


def _drop(run: RunReader, change: Change, cause: Cause) -> dict[str, Any]:
    first = None if cause.first is None else _bad(run, cause.first) | _before(cause)
    return {
        "step": change.step, "skipped": change.skipped, "cause": cause.what,
        "scales": [{"scaler": each.scaler, "before": each.before, "after": each.after} for each in change.scales],
        "ranks": cause.ranks[:MOST_NAMED], "rank_count": len(cause.ranks), "first": first,
        "tensors": [_bad(run, each) for each in cause.tensors[:MOST_NAMED]], "tensor_count": cause.tensor_count,
    }  # fmt: skip


def _bad(run: RunReader, bad: Bad) -> dict[str, Any]:
    counts = {"nan_count": bad.nan_count, "inf_count": bad.inf_count, "numel": bad.numel}
    return _named(run, bad.tensor) | {"rank": bad.rank} | counts


def _before(cause: Cause) -> dict[str, Any]:
    return {
        "amax_before": cause.amax,
        "amax_before_step": cause.amax_step,
        "limit_dtype": cause.limit_dtype,
        "headroom_before_bits": cause.headroom_bits,
    }


def _named(run: RunReader, tensor: int) -> dict[str, Any]:
    details = extremes.tensor_details(tensor, run.names().tensors)
    return {
        name: details[name] for name in ("tensor", "label", "fqn", "kind", "index", "module", "dtype", "max_finite")
    }


def _layers(run: RunReader, history: History, causes: Iterable[Cause]) -> list[dict[str, Any]]:
    layers: list[Layer] = skip_cause.by_layer(causes)[:MOST_LAYERS]
    level = history.coarse().level
    amax = skip_cause.largest(run, [each.tensor for each in layers], level, history.start, history.stop)
    return [
        _named(run, each.tensor) | {
            "first": each.first, "overflows": each.overflows, "last_step": each.last_step,
            "amax": amax.get(each.tensor),
        } for each in layers
    ]  # fmt: skip
