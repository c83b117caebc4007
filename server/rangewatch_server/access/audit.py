"""What was done with the role admin: who, when, from where, what, and what became of it.

The record is written before the thing is done, and where it cannot be written nothing is done.
"""

from __future__ import annotations

import logging

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rangewatch_server.access.principals import Principal
from rangewatch_server.core.errors import ApiError, DatabaseError
from rangewatch_server.store.tokens import AccessStore

logger = logging.getLogger("rangewatch.server")
done = logging.getLogger("rangewatch.audit")

MOST_CLIENT = 64  # characters: an IPv6 address with its zone; what a proxy passes on may be anything
NOTE = "audit_note"  # in a request's state
_limiter = CapacityLimiter(2)  # threads of its own: page requests have others


def note(request: Request, text: str) -> None:
    """What a route adds to its record: the name of a run, what agents are asked."""
    setattr(request.state, NOTE, text)


async def recorded(
    app: ASGIApp, store: AccessStore, principal: Principal, scope: Scope, receive: Receive, send: Send
) -> None:
    """Call `app` between the beginning and the end of a record. Raises `ApiError` when none can be written."""
    client = client_of(scope)
    what = f"{scope['method']} {scope['path']}"  # without the query: routes add what matters of it
    try:
        number = await to_thread.run_sync(store.begin_record, principal.name, client, what, limiter=_limiter)
    except DatabaseError as error:
        logger.error("nothing is done without a record of it: %s", error)
        raise ApiError(503, "no_audit", "the audit cannot be written, so nothing was done", 10) from None
    status: int | None = None

    async def sending(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    try:
        await app(scope, receive, sending)
    except BaseException:
        status = None
        raise
    finally:
        detail = str(scope["state"].get(NOTE, ""))
        # Who has the role admin can make so many records that their own oldest go; lines that were sent elsewhere stay.
        done.info(what, extra={"who": principal.name, "client": client, "status": status, "detail": detail})
        with anyio.CancelScope(shield=True):
            await _end(store, number, status, detail)


async def _end(store: AccessStore, number: int, status: int | None, detail: str) -> None:
    try:
        await to_thread.run_sync(store.end_record, number, status, detail, limiter=_limiter)
    except DatabaseError as error:
        logger.error("the end of record %d of the audit cannot be written: %s", number, error)


def client_of(scope: Scope) -> str:
    """The address that a request comes from; a proxy's client where the proxy is believed (--forwarded-allow-ips)."""
    client = scope.get("client")
    return str(client[0])[:MOST_CLIENT] if client else "unknown"
