"""Who may talk to this server, and what browsers may do with its pages. Pure ASGI: it never buffers a response.

A dashboard on loopback is still reachable from any web page by DNS rebinding, so the Host header must be one of ours.
(With a token a rebound page gets nowhere, its requests carry neither token nor cookie; so any name will do then,
unless names were given.) And a request that changes something must not come from another site's page: its Origin must
be ours when it has one, and what the browser says of where it comes from (Sec-Fetch-Site) must not be elsewhere, also
when there is no Origin. Nor may such a page fetch from the API: reads cost work, and a backup a copy of everything.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rangewatch_server.access.audit import client_of, recorded
from rangewatch_server.access.principals import ADMIN, INGEST, VIEW, Principal, Principals
from rangewatch_server.access.rate_limits import ALL_GUESSES, GUESSES, RateLimit
from rangewatch_server.core.errors import ApiError
from rangewatch_server.core.settings import Settings, host_name, is_loopback, own_name

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
    "cross-origin-resource-policy": "same-origin",
}
READS = ("GET", "HEAD")
INGEST_PATH = "/api/v1/ingest"
BACKUP_PATH = "/api/v1/backup"
WHO_PATH = "/api/v1/access"  # shown to strangers, too: that they are
ADMIN_READS = (BACKUP_PATH, "/api/v1/prune", "/api/v1/audit")
OUR_PAGES = ("same-origin", "none")  # none: typed, or a bookmark


class AccessMiddleware:
    """Host, Origin and roles before anything else; security headers on every answer; a record of what admins do."""

    def __init__(self, app: ASGIApp, principals: Principals, changes: RateLimit) -> None:
        self.app = app
        self.guesses = RateLimit("wrong tokens", GUESSES, ALL_GUESSES)
        self.principals = principals
        self.changes = changes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        send = _with_headers(send)
        try:
            await self._checked(scope, receive, send)
        except ApiError as error:
            await _answer(send, error)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        if "transfer-encoding" in headers and "content-length" in headers:
            # Which of them a proxy before this goes by nobody knows: the rest might be another request to it.
            raise ApiError(400, "two_lengths", "a request has either Content-Length or Transfer-Encoding")
        if path not in PROBES and not is_our_host(headers.get("host", ""), self.principals):
            raise ApiError(421, "unknown_host", "this server is not known under that name; see --allow-host")
        role = needed_role(method, path)
        _check_site(headers, method, scope["scheme"], role)
        if role is None:
            await self.app(scope, receive, send)
            return
        principal = await self._caller(headers, role, client_of(scope))
        scope.setdefault("state", {})["principal"] = principal
        if (method in READS and path != BACKUP_PATH) or role == INGEST:
            await self.app(scope, receive, send)
            return
        self.changes.take(client_of(scope))
        await recorded(self.app, self.principals.store, principal, scope, receive, send)

    async def _caller(self, headers: Headers, role: str, client: str) -> Principal:
        principal = self.principals.find(headers) or await self.principals.find_fresh(headers)
        if principal is None:
            is_wrong = "authorization" in headers
            if is_wrong:  # after the look, so that whoever has a right one is never held up by others of an address
                self.guesses.take(client)
            message = "that token is not known here, or was revoked" if is_wrong else "a token is needed"
            raise ApiError(401, "unauthorized", f"{message}: Authorization: Bearer TOKEN")
        if role not in principal.roles:
            may = " and ".join(sorted(principal.roles))
            raise ApiError(403, "forbidden", f"the token {principal.name!r} has the role {may}; this needs {role}")
        return principal


def needed_role(method: str, path: str) -> str | None:
    """What a request needs; None: anybody may. Whatever is not known to be less needs `admin`."""
    if not path.startswith(("/api/", METRICS)) or (path == WHO_PATH and method in READS):
        return None
    if path == INGEST_PATH and method == "POST":
        return INGEST
    return VIEW if method in READS and path not in ADMIN_READS else ADMIN


def may_read(headers: Headers, principals: Principals) -> bool:
    """Whether who sends these headers may read runs: under a name of ours, and with a token when one is asked for."""
    principal = principals.find(headers)
    return is_our_host(headers.get("host", ""), principals) and principal is not None and VIEW in principal.roles


def is_our_host(host: str, principals: Principals) -> bool:
    """Whether the server may be called so."""
    settings: Settings = principals.settings
    if principals.need_token and not settings.allowed_hosts:
        return True
    name = host_name(host)  # a port says nothing: proxies have others
    ours = (own_name(each) for each in (settings.host, *settings.allowed_hosts))
    return is_loopback(name) or (name != "" and name in ours)


def _check_site(headers: Headers, method: str, scheme: str, role: str | None) -> None:
    """Raises `ApiError` 403 for what a page of another site brought about."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    if method not in READS:
        is_ours = site in OUR_PAGES and (origin is None or _is_own(origin, headers.get("host"), scheme))
    else:
        # A link that leads here is all right, but not to what an admin alone may do, and not unseen, in a frame.
        is_page = headers.get("sec-fetch-dest", "document") == "document"
        is_link = headers.get("sec-fetch-mode") == "navigate" and is_page and role != ADMIN
        is_ours = role is None or site in OUR_PAGES or is_link
    if not is_ours:
        raise ApiError(403, "wrong_origin", "a page of another site may not do this here")


def _is_own(origin: str, host: str | None, scheme: str) -> bool:
    """A page that came unencrypted, which anybody on the way may have written, is not one of a server with https."""
    theirs, _, place = origin.partition("://")
    return place == host and (theirs == "https" or scheme != "https")


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
        await send(message)

    return sending


async def _answer(send: Send, error: ApiError) -> None:
    body = error.body()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.code == "two_lengths":
        headers.append((b"connection", b"close"))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
