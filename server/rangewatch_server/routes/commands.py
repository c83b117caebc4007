"""Routes of remote control: ask the agents of a run for more, see what became of it, take it back. docs/api.md."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import select

from rangewatch_server.access.audit import note
from rangewatch_server.access.body import decoded, read_body
from rangewatch_server.core.errors import ApiError, request_body
from rangewatch_server.ingest.commands import EXPIRES_S, Ask, CommandRefused, Withdraw
from rangewatch_server.ingest.transaction import Refused
from rangewatch_server.ingest.writer import Busy, Unavailable, Writer
from rangewatch_server.machines.mesh import world_size
from rangewatch_server.query.reader import RunReader
from rangewatch_server.routes.dependencies import MAX_ID, RunId, answer, reading_run
from rangewatch_server.store import tables
from rangewatch_server.store.exit_state import ENDED
from rangewatch_server.views import overview

router = APIRouter()

KINDS = ("trace", "level", "whatif")
LEVELS = ("grads", "outputs", "frames", "default")
MAX_BODY_BYTES = 64 << 10
MAX_STEPS = 1_000  # a trace in full costs several times the step, and must end
MAX_PATTERNS = 100
MAX_PATTERN_BYTES = 200  # a command is at most 40 KiB of JSON then, with every character escaped
MAX_LISTED = 100
RETRY_AFTER_S = 1
STATUS_OF_CODE = {"unknown_command": 404, "not_live": 409, "not_pending": 409, "too_many_commands": 409}


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST. `ranks` None is all of them; `modules` empty is the whole model."""

    kind: str
    steps: int = 1
    modules: tuple[str, ...] = ()
    level: str = ""
    ranks: tuple[int, ...] | None = None


_SCHEMA = msgspec.json.schema_components([Asked])[1]["Asked"]


@router.post("/api/v1/runs/{run_id}/commands", status_code=201, openapi_extra=request_body("application/json", _SCHEMA))
async def ask(run_id: RunId, request: Request) -> Response:
    """Ask the run's agents for something; 201 with the command as the list shows it."""
    asked = decoded(await read_body(request, MAX_BODY_BYTES), Asked)
    body = _checked(asked)
    note(request, msgspec.json.encode(body | {"ranks": asked.ranks}).decode())
    message = await to_thread.run_sync(_for_run, request, run_id, asked, body)
    number = await _written(request, message)
    return await to_thread.run_sync(_show, request, run_id, number, 201)


@router.get("/api/v1/runs/{run_id}/commands")
def list_commands(run_id: RunId, request: Request, limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20) -> Response:
    """What was asked of the run, newest first."""
    with reading_run(request, run_id) as run:
        return answer({"now_ns": run.now_ns, "commands": newest_commands(run, limit)})


@router.get("/api/v1/runs/{run_id}/commands/{command_id}")
def show_command(run_id: RunId, command_id: int, request: Request) -> Response:
    """One command and what became of it on each rank."""
    return _show(request, run_id, command_id, 200)


@router.delete("/api/v1/runs/{run_id}/commands/{command_id}")
async def withdraw(run_id: RunId, command_id: int, request: Request) -> Response:
    """Take back what no rank has answered yet; the command as it is then."""
    await to_thread.run_sync(_show, request, run_id, command_id, 200)
    await _written(request, Withdraw(run_id, command_id))
    return await to_thread.run_sync(_show, request, run_id, command_id, 200)


def _show(request: Request, run_id: int, command_id: int, status: int) -> Response:
    with reading_run(request, run_id) as run:
        command = one_command(run, command_id) if 0 <= command_id < MAX_ID else None
        if command is None:
            raise ApiError(404, "unknown_command", f"run {run_id} has no command {command_id}")
        return answer(command, status)


async def _written(request: Request, message: Ask | Withdraw) -> int:
    """Wait until the writer has committed it."""
    writer: Writer = request.app.state.writer
    try:
        return await asyncio.wrap_future(writer.command(message))
    except CommandRefused as error:
        raise ApiError(STATUS_OF_CODE[error.code], error.code, str(error)) from None
    except Busy as error:
        raise ApiError(429, "busy", str(error), RETRY_AFTER_S) from None
    except (Unavailable, Refused):
        raise ApiError(503, "unavailable", "the database did not take the command", RETRY_AFTER_S) from None


def _checked(asked: Asked) -> dict[str, Any]:
    """What the agents get; only the fields of its kind."""
    if asked.kind not in KINDS:
        raise _bad(f"kind {asked.kind[:40]!r} is not one of {', '.join(KINDS)}")
    if asked.kind == "level":
        if asked.level not in LEVELS:
            raise _bad(f"level {asked.level[:40]!r} is not one of {', '.join(LEVELS)}")
        return {"kind": "level", "level": asked.level}
    _check_patterns(asked.modules)
    if asked.kind == "whatif":
        return {"kind": "whatif", "modules": asked.modules}
    if not 1 <= asked.steps <= MAX_STEPS:
        raise _bad(f"steps {asked.steps} is not from 1 to {MAX_STEPS}")
    return {"kind": "trace", "steps": asked.steps, "modules": asked.modules}


def _check_patterns(patterns: tuple[str, ...]) -> None:
    if len(patterns) > MAX_PATTERNS:
        raise _bad(f"{len(patterns)} patterns of modules; at most {MAX_PATTERNS} are taken")
    for pattern in patterns:
        if not pattern or not pattern.isprintable() or len(pattern.encode()) > MAX_PATTERN_BYTES:
            raise _bad(f"module pattern {pattern[:40]!r} is empty, not printable or over {MAX_PATTERN_BYTES} bytes")


def _for_run(request: Request, run_id: int, asked: Asked, body: dict[str, Any]) -> Ask:
    """The command for that run's ranks, or 404 or 409."""
    with reading_run(request, run_id) as run:
        ranks = None if asked.ranks is None else tuple(sorted(set(asked.ranks)))
        if ranks is not None:
            _check_ranks(run, ranks)
        state = overview.state(run)
        if state in ENDED:
            raise ApiError(409, "not_live", f"run {run_id} has {state}: nobody is there to obey")
        return Ask(run_id, body, ranks, world_size(run))


def _check_ranks(run: RunReader, ranks: tuple[int, ...]) -> None:
    if not ranks:
        raise _bad("ranks is empty; leave it out for all ranks")
    for rank in ranks:
        if rank not in run.ranks:
            raise ApiError(404, "unknown_rank", f"run {run.id} has no rank {rank}")
        if run.ranks[rank].row.state != "open":
            raise ApiError(409, "not_live", f"rank {rank} of run {run.id} has {run.ranks[rank].row.state}")


def _bad(text: str) -> ApiError:
    return ApiError(422, "bad_parameter", text)


NOT_ANSWERED = f"no answer within {EXPIRES_S / 60:.0f} minutes"


def newest_commands(run: RunReader, limit: int) -> list[dict[str, Any]]:
    """The run's last `limit` commands, newest first."""
    commands = tables.commands
    query = select(commands).where(commands.c.run_id == run.id).order_by(commands.c.id.desc()).limit(limit)
    return _with_states(run, list(run.connection.execute(query)))


def one_command(run: RunReader, command_id: int) -> dict[str, Any] | None:
    """One command of the run, or None."""
    commands = tables.commands
    query = select(commands).where(commands.c.run_id == run.id, commands.c.id == command_id)
    return next(iter(_with_states(run, list(run.connection.execute(query)))), None)


def _with_states(run: RunReader, commands: Sequence[Any]) -> list[dict[str, Any]]:
    states = tables.command_ranks
    query = select(states).where(states.c.command_id.in_([each.id for each in commands])).order_by(states.c.rank)
    by_command: dict[int, list[Any]] = {each.id: [] for each in commands}
    for row in run.connection.execute(query):
        by_command[row.command_id].append(row)
    return [_command(run, each, by_command[each.id]) for each in commands]


def _command(run: RunReader, command: Any, states: Sequence[Any]) -> dict[str, Any]:
    has_expired = run.now_ns >= command.expires_ns
    return {"id": command.id} | msgspec.json.decode(command.body) | {
        "ranks": msgspec.json.decode(command.ranks), "created_ns": command.created_ns,
        "expires_ns": command.expires_ns, "withdrawn_ns": command.withdrawn_ns,
        "states": [_state(run, each, has_expired) for each in states],
    }  # fmt: skip


def _state(run: RunReader, row: Any, has_expired: bool) -> dict[str, Any]:
    is_late = row.state == "pending" and has_expired
    rank = run.ranks[row.rank]
    return {
        "rank": row.rank, "state": "expired" if is_late else row.state,
        "first_step": row.first_step, "last_step": row.last_step,
        "reason": NOT_ANSWERED if is_late else row.reason, "changed_ns": row.changed_ns,
        "live": rank.row.id == row.stream_id and run.is_live(rank),
    }  # fmt: skip
