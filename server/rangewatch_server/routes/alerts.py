"""Routes of alerts: what stands and stood, acknowledged, silenced, sent; thresholds of a run. docs/api.md."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from sqlalchemy import Connection

from rangewatch_server import rules
from rangewatch_server.access.audit import note
from rangewatch_server.access.body import decoded, read_body
from rangewatch_server.alerts import message
from rangewatch_server.alerts.config import RuleTable, Target, Webhook, table_problems
from rangewatch_server.alerts.delivery import Delivery
from rangewatch_server.alerts.evaluator import Evaluator, thresholds_of
from rangewatch_server.alerts.safe_http import SafeHttpError
from rangewatch_server.alerts.silences import Silence, silenced
from rangewatch_server.core.errors import ApiError, request_body
from rangewatch_server.ingest.transaction import Changed
from rangewatch_server.ingest.writer import Busy
from rangewatch_server.routes.dependencies import MAX_ID, RunId, answer, reading, reading_run
from rangewatch_server.store import alerts
from rangewatch_server.store.run_metadata import ANY_TEXT

router = APIRouter()

Result = TypeVar("Result")
State = Literal["open", "over", "all"]
Limit = Annotated[int, Query(ge=1, le=500)]
TargetName = Annotated[str, Path(max_length=64, pattern="^[A-Za-z0-9_.-]+$")]
Before = Annotated[int | None, Query(ge=0, le=MAX_ID)]
MAX_BODY_BYTES = 64 << 10
MAX_SILENCE_S = 366 * 86_400.0
_IS_OPEN: dict[str, bool | None] = {"open": True, "over": False, "all": None}


Text = Annotated[str, msgspec.Meta(max_length=1_000, pattern=ANY_TEXT)]
_testing = CapacityLimiter(1)
"""A thread of its own: a mail server that does not answer would take one of the few that read for the pages."""


class AskedSilence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a silence: for so many seconds nothing is sent of a run, a rule, and modules that fit a pattern."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_SILENCE_S)]
    run_id: Annotated[int, msgspec.Meta(ge=0, lt=MAX_ID)] | None = None
    rule: str = ""
    tensor: Text = ""
    reason: Text = ""


_SILENCE_SCHEMA = msgspec.json.schema_components([AskedSilence])[1]["AskedSilence"]
_THRESHOLDS_SCHEMA = {"type": "object", "additionalProperties": {"type": "object"}}


@router.get("/api/v1/alerts")
def list_alerts(request: Request, state: State = "open", limit: Limit = 100, before: Before = None) -> Response:
    """Alerts of all runs, newest first."""
    with reading(request) as reader:
        return answer(_listed(reader.connection, None, state, limit, before))


@router.get("/api/v1/runs/{run_id}/alerts")
def list_alerts_of_run(
    run_id: RunId, request: Request, state: State = "all", limit: Limit = 100, before: Before = None
) -> Response:
    """Alerts of one run, newest first."""
    with reading_run(request, run_id) as run:
        return answer(_listed(run.connection, run_id, state, limit, before))


@router.get("/api/v1/alerts/{alert_id}")
def show_alert(alert_id: int, request: Request) -> Response:
    """One alert, and what was sent of it."""
    with reading(request) as reader:
        return answer(_one(reader.connection, alert_id))


@router.post("/api/v1/alerts/{alert_id}/acknowledge")
async def acknowledge(alert_id: int, request: Request) -> Response:
    """Somebody has seen it; the alert as it is then."""
    return await _acknowledge(request, alert_id, time.time_ns())


@router.delete("/api/v1/alerts/{alert_id}/acknowledge")
async def take_back(alert_id: int, request: Request) -> Response:
    """Nobody has seen it after all."""
    return await _acknowledge(request, alert_id, None)


async def _acknowledge(request: Request, alert_id: int, now_ns: int | None) -> Response:
    who = str(request.state.principal.name)
    if not 0 <= alert_id < MAX_ID:
        raise _no_alert(alert_id)
    await _written(request, lambda connection: alerts.acknowledge(connection, alert_id, who, now_ns))
    return await to_thread.run_sync(_reported, request, alert_id)


def _reported(request: Request, alert_id: int) -> Response:
    with reading(request) as reader:
        shown = _one(reader.connection, alert_id)
    request.app.state.broker.publish([Changed(shown["run_id"], None)])
    return answer(shown)


@router.get("/api/v1/silences")
def list_silences(request: Request) -> Response:
    """What is silenced now."""
    with reading(request) as reader:
        rows = alerts.silences(reader.connection, time.time_ns())
        return answer({"silences": [dict(row._mapping) for row in rows]})


@router.post("/api/v1/silences", status_code=201, openapi_extra=request_body("application/json", _SILENCE_SCHEMA))
async def silence(request: Request) -> Response:
    """Tell nobody of something for some time; its number."""
    asked = decoded(await read_body(request, MAX_BODY_BYTES), AskedSilence)
    if asked.rule and asked.rule not in rules.BY_NAME:
        raise _bad(f"there is no rule {asked.rule[:60]!r}")
    note(request, f"rule {asked.rule or 'any'}, run {asked.run_id if asked.run_id is not None else 'any'}")
    if asked.run_id is not None:
        await to_thread.run_sync(_check_run, request, asked.run_id)
    now_ns = time.time_ns()
    values = msgspec.structs.asdict(asked) | {
        "created_by": str(request.state.principal.name), "until_ns": now_ns + int(asked.seconds * 1e9),
    }  # fmt: skip
    del values["seconds"]
    made = await _written(request, lambda connection: alerts.silence(connection, values, now_ns))
    if made is None:
        raise ApiError(409, "too_many_silences", f"there are {alerts.MAX_SILENCES} silences; end some first")
    return answer({"id": made} | values | {"created_ns": now_ns}, 201)


@router.delete("/api/v1/silences/{silence_id}")
async def unsilence(silence_id: int, request: Request) -> Response:
    """End a silence."""
    is_there = 0 <= silence_id < MAX_ID and await _written(
        request, lambda connection: alerts.unsilence(connection, silence_id)
    )
    if not is_there:
        raise ApiError(404, "unknown_silence", f"there is no silence {silence_id}")
    return answer({"id": silence_id})


@router.get("/api/v1/runs/{run_id}/thresholds")
def show_thresholds(run_id: RunId, request: Request) -> Response:
    """The rules' thresholds for this run: the default, what the server's file says, and what was set here."""
    evaluator: Evaluator = request.app.state.alerts
    with reading_run(request, run_id) as run:
        own = alerts.thresholds(run.connection, run_id)
        return answer({
            "file": evaluator.config.given(run.name), "run": {} if own is None else msgspec.json.decode(own),
            "in_force": thresholds_of(run, evaluator.config),
            "defaults": {rule.name: rule.limits() | {"enabled": True} for rule in rules.ALL},
        })  # fmt: skip


@router.put("/api/v1/runs/{run_id}/thresholds", openapi_extra=request_body("application/json", _THRESHOLDS_SCHEMA))
async def set_thresholds(run_id: RunId, request: Request) -> Response:
    """Set what is otherwise for this run, all at once; `{}` takes everything back."""
    given = decoded(await read_body(request, MAX_BODY_BYTES), dict[str, RuleTable])
    for problem in table_problems(given):
        raise _bad(problem)
    await to_thread.run_sync(_check_run, request, run_id)
    body = msgspec.json.encode(given)
    note(request, body.decode()[:1_000])
    now_ns = time.time_ns()
    await _written(request, lambda connection: alerts.set_thresholds(connection, run_id, body, now_ns))
    request.app.state.alerts.changed([Changed(run_id, None)])
    return await to_thread.run_sync(show_thresholds, run_id, request)


@router.get("/api/v1/targets")
def list_targets(request: Request) -> Response:
    """Where alerts are sent, without addresses: those may hold secrets."""
    with reading(request):
        return answer({"targets": [_target(each) for each in request.app.state.delivery.config.targets]})


@router.post("/api/v1/targets/{name}/test")
async def test_target(name: TargetName, request: Request) -> Response:
    """Send a test to one of them now, and say how it went."""
    delivery: Delivery = request.app.state.delivery
    target = next((each for each in delivery.config.targets if each.name == name), None)
    if target is None:
        raise ApiError(404, "unknown_target", f"alerts are sent to no {name[:64]!r}; see --alerts")
    note(request, name)
    try:
        await to_thread.run_sync(delivery.send, target, delivery.test_notice(), limiter=_testing)
    except SafeHttpError as error:
        return answer({"name": name, "sent": False, "error": str(error)})
    return answer({"name": name, "sent": True, "error": ""})


def _target(target: Target) -> dict[str, Any]:
    kind = f"webhook ({target.format})" if isinstance(target, Webhook) else type(target).__name__.lower()
    return {"name": target.name, "kind": kind, "severity": target.severity, "resolved": target.resolved}


def _listed(connection: Connection, run_id: int | None, state: State, limit: int, before: int | None) -> dict[str, Any]:
    now_ns = time.time_ns()
    rows = alerts.listed(connection, run_id, is_open=_IS_OPEN[state], before=before, limit=limit + 1)
    quiet = [Silence(**row._mapping) for row in alerts.silences(connection, now_ns)]
    shown = [_shown(row, quiet, now_ns) for row in rows[:limit]]
    return {"now_ns": now_ns, "alerts": shown, "next": rows[limit - 1].id if len(rows) > limit else None}


def _shown(row: Any, quiet: list[Silence], now_ns: int) -> dict[str, Any]:
    details = message.shown_of(row)
    by = silenced(quiet, row.run_id, details["finding"], now_ns)
    return details | {"silenced_by": None if by is None else by.id}


def _one(connection: Connection, alert_id: int) -> dict[str, Any]:
    row = alerts.one(connection, alert_id) if 0 <= alert_id < MAX_ID else None
    if row is None:
        raise _no_alert(alert_id)
    now_ns = time.time_ns()
    quiet = [Silence(**each._mapping) for each in alerts.silences(connection, now_ns)]
    sent = [
        {name: getattr(each, name) for name in ("target", "what", "attempts", "next_ns", "done_ns", "error")}
        for each in alerts.deliveries(connection, [alert_id])
    ]
    return _shown(row, quiet, now_ns) | {"now_ns": now_ns, "deliveries": sent}


def _check_run(request: Request, run_id: int) -> None:
    with reading_run(request, run_id):
        return


async def _written(request: Request, job: Callable[[Connection], Result]) -> Result:
    """Wait until the writer has committed it."""
    try:
        result: Result = await asyncio.wrap_future(request.app.state.writer.work(job))
    except Busy as error:
        raise ApiError(429, "busy", str(error), 1) from None
    return result


def _no_alert(alert_id: int) -> ApiError:
    return ApiError(404, "unknown_alert", f"there is no alert {alert_id}")


def _bad(text: str) -> ApiError:
    return ApiError(422, "bad_parameter", text)
