"""Who may talk to this server, and what browsers may do with its pages. Pure ASGI: it never buffers a response.

A dashboard on loopback is still reachable from any web page by DNS rebinding, so the Host header must be one of ours.
(With a token a rebound page gets nowhere, its requests carry neither token nor cookie; so any name will do then,
unless names were given.) And a request that changes something must not come from another site's page, so its Origin
must be ours when it has one.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rangewatch_server.settings import Settings, is_loopback

COOKIE = "rangewatch_session"
METRICS = "/metrics"
PROBES = ("/healthz", "/readyz")  # asked by address, under any name; who asks so learns a status only
CSP = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)  # Plotly writes style attributes, hence unsafe-inline for styles only
SECURITY_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}


def session_of(token: str) -> str:
    """The cookie's value: it proves knowledge of the token without holding it."""
    return hmac.new(token.encode(), b"rangewatch session 1", hashlib.sha256).hexdigest()


class AccessMiddleware:
    """Host, Origin and token checks before anything else; security headers on every answer."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(Headers(scope=scope), scope["method"], scope["path"])
        if refusal is not None:
            await _answer(send, *refusal)
            return
        await self.app(scope, receive, _with_headers(send))

    def _refusal(self, headers: Headers, method: str, path: str) -> tuple[int, str, str] | None:
        if path not in PROBES and not _is_our_host(headers.get("host", ""), self.settings):
            return 421, "unknown_host", "this server is not known under that name; see --allow-host"
        origin = headers.get("origin")
        if method not in ("GET", "HEAD") and origin is not None and not self._is_same_site(origin, headers):
            return 403, "wrong_origin", "a page of another site may not change anything here"
        if (path.startswith("/api/") or path == METRICS) and not _is_known(headers, self.settings):
            return 401, "unauthorized", "a token is needed: Authorization: Bearer TOKEN"
        return None

    def _is_same_site(self, origin: str, headers: Headers) -> bool:
        return origin.partition("://")[2] == headers.get("host")


def may_read(headers: Headers, settings: Settings) -> bool:
    """Whether who sends these headers may read runs: under a name of ours, and with the token when there is one."""
    return _is_our_host(headers.get("host", ""), settings) and _is_known(headers, settings)


def _is_our_host(host: str, settings: Settings) -> bool:
    if settings.token and not settings.allowed_hosts:
        return True
    name = _host_name(f"//{host}")
    return is_loopback(name) or name == settings.host or name in settings.allowed_hosts


def _is_known(headers: Headers, settings: Settings) -> bool:
    if not settings.token:
        return True
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and _same(token.strip(), settings.token):
        return True
    # As browsers send them: `http.cookies` would drop ours for another's before it that has a name it does not like.
    cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
    return cookie is not None and _same(cookie, session_of(settings.token))


def _host_name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
        await send(message)

    return sending


async def _answer(send: Send, status: int, code: str, text: str) -> None:
    body = msgspec.json.encode({"error": text, "code": code})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
