"""Who asks: a browser's session, a token for a cookie that no script can read; and the audit of what admins did."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated
from urllib.parse import parse_qsl

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from rangewatch_server.access.audit import client_of
from rangewatch_server.access.body import read_body
from rangewatch_server.access.principals import ROLES, VIEW, Principal, Principals, cookie_name, cookies_of
from rangewatch_server.core.errors import ApiError, DatabaseError, request_body
from rangewatch_server.routes.dependencies import MAX_ID, answer
from rangewatch_server.store.tokens import Session, digest_of

router = APIRouter()

SESSION_S = 30 * 86_400
MAX_BODY_BYTES = 16 << 10  # a token of 4 KiB with every byte escaped
MAX_FIELDS = 10
MOST_RECORDS = 500  # of one answer
_FORM = {"type": "object", "properties": {"token": {"type": "string"}}, "required": ["token"]}


@router.post("/login", status_code=204, openapi_extra=request_body("application/x-www-form-urlencoded", _FORM))
async def login(request: Request) -> Response:
    """Exchange a token (form field `token`) for a session cookie."""
    principals: Principals = request.app.state.principals
    with request.app.state.room.taken() as taken:
        token = _token(await read_body(request, MAX_BODY_BYTES, taken))
    principal = principals.of_token(token)
    _count(request, principal)
    if principal is None:
        await principals.refresh()
        principal = principals.of_token(token)
    if principal is None:
        raise ApiError(401, "unauthorized", "that is not this server's token")
    if VIEW not in principal.roles:
        raise ApiError(403, "forbidden", f"the token {principal.name!r} is for agents: it may send, and not look")
    cookie = await _opened(principals, principal)
    response = Response(status_code=204)
    is_secure = request.url.scheme == "https"
    name = cookie_name(request.headers)
    response.set_cookie(name, cookie, httponly=True, samesite="strict", secure=is_secure, max_age=SESSION_S)
    return response


@router.post("/logout", status_code=204)
async def logout(request: Request) -> Response:
    """End the session, here and on every other server."""
    principals: Principals = request.app.state.principals
    for session in [each for each in map(principals.of_cookie, cookies_of(request.headers)) if each is not None]:
        await _changed(principals, partial(principals.store.close_session, session.session))
    response = Response(status_code=204)
    is_secure = request.url.scheme == "https"
    response.delete_cookie(cookie_name(request.headers), httponly=True, samesite="strict", secure=is_secure)
    return response


@router.get("/api/v1/access")
def access(request: Request) -> Response:
    """Who asks, and what that one may do; of somebody unknown, that nothing is."""
    principals: Principals = request.app.state.principals
    principal = principals.find(request.headers) or Principal("", frozenset())
    roles = [role for role in ROLES if role in principal.roles]
    return answer({"name": principal.name, "roles": roles, "session": bool(principal.session)})


@router.get("/api/v1/audit")
def list_records(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MOST_RECORDS)] = 100,
    before: Annotated[int | None, Query(ge=0, le=MAX_ID)] = None,
) -> Response:
    """What was done with the role admin, newest first. `rangewatch audit` reads the same from the database."""
    principals: Principals = request.app.state.principals
    try:
        return answer({"records": principals.store.records(limit, before)})
    except DatabaseError as error:
        raise ApiError(503, "unavailable", str(error), 1) from None


def _count(request: Request, principal: Principal | None) -> None:
    """Raises `ApiError` 429. Tries are counted by address; a token that was made here by itself: it cannot be guessed,
    and nobody's wrong tries must keep out who has it. --token may have been thought up.
    """
    state = request.app.state
    if principal is None or principal.token_id is None:
        state.guesses.take(client_of(request.scope))
    else:
        state.logins.take(principal.name)


def _token(body: bytes) -> str:
    try:
        fields = parse_qsl(body.decode(), strict_parsing=False, max_num_fields=MAX_FIELDS)
    except ValueError:  # not UTF-8, or too many fields
        raise ApiError(422, "bad_parameter", "the body is not a form with the field token") from None
    tokens = [value for name, value in fields if name == "token"]
    if len(tokens) != 1:
        raise ApiError(422, "bad_parameter", "token: the form needs this field, once")
    return tokens[0].strip()  # pasted with what stood around it


async def _opened(principals: Principals, principal: Principal) -> str:
    """A new session; its cookie, which is stored as its digest only."""
    cookie = secrets.token_urlsafe(32)
    proof = principals.proof(cookie) if principal.token_id is None else ""
    expires_ns = time.time_ns() + SESSION_S * 10**9
    session = Session(digest_of(cookie), principal.token_id, proof, expires_ns)
    await _changed(principals, lambda: principals.store.open_session(session))
    return cookie


async def _changed(principals: Principals, work: Callable[[], None]) -> None:
    """Do it, and know of it at once."""
    try:
        await to_thread.run_sync(work)
        await to_thread.run_sync(principals.load)
    except DatabaseError as error:
        raise ApiError(503, "unavailable", str(error), 1) from None
