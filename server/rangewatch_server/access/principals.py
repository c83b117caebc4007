"""Who sends a request, by its token or its session, and what that one may do.

All live tokens and sessions are held in memory and read again each second, so that what `rangewatch token` changes is
in force on every server of the database within that; a secret that is not known is looked up at once. When the database
does not answer, what was last read holds.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Callable
from itertools import islice

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers

from rangewatch_server.core.errors import DatabaseError
from rangewatch_server.core.settings import Settings, host_port, is_loopback
from rangewatch_server.store.tokens import AccessStore, Session, Stored, Token, digest_of

logger = logging.getLogger("rangewatch.server")

COOKIE = "rangewatch_session"  # with a port where there is one: `cookie_name`
INGEST, VIEW, ADMIN = "ingest", "view", "admin"
ROLES = (INGEST, VIEW, ADMIN)
MAX_COOKIES = 20  # of our name in one request: each costs a digest
SERVER_TOKEN = "--token"  # noqa: S105 - the name that the audit has for it
POLL_S = 1.0
REFRESH_S = 0.25  # between two looks for unknown secrets: anybody may send such


class Principal(msgspec.Struct, frozen=True):
    """Somebody who is known. `token_id` None: the server's own token, or nobody is asked for one."""

    name: str
    roles: frozenset[str]
    token_id: int | None = None
    session: str = ""
    """The digest of the session's cookie; empty for a token."""


EVERYTHING = frozenset(ROLES)
LOCAL = Principal("local", EVERYTHING)


class Principals:
    """Finds callers; `start` keeps it up to date, until `stop`. `on_change` is called from a thread."""

    def __init__(self, settings: Settings, store: AccessStore, on_change: Callable[[], None] = lambda: None) -> None:
        self.settings = settings
        self.store = store
        self.on_change = on_change
        self._stored = Stored()
        self._tokens: dict[str, Token] = {}
        self._sessions: dict[str, Session] = {}
        self._had_tokens = False
        self._refreshed_s = -REFRESH_S
        self._limiter = CapacityLimiter(1)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="rangewatch-access", daemon=True)

    def load(self) -> None:
        """Read all now. Raises `DatabaseError`."""
        with self._lock:  # an older answer must not come after a newer one
            stored = self.store.read()
            changed = stored != self._stored
            live = {each.digest: each for each in stored.tokens if each.revoked_ns is None}
            self._tokens, self._sessions = live, {each.digest: each for each in stored.sessions}
            self._stored = stored
            self._had_tokens = self._had_tokens or bool(stored.tokens)
        if changed:
            self.on_change()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the store."""
        self._ended.set()
        self._thread.join()
        self.store.dispose()

    @property
    def need_token(self) -> bool:
        """Whether a token is asked for. Once one was made that stays so: to revoke the last lets nobody in, nor does
        a file of them that has gone, with its disk perhaps, while a proxy passes everybody on to loopback.
        """
        return bool(self.settings.token) or self._had_tokens or not is_loopback(self.settings.host)

    def find(self, headers: Headers) -> Principal | None:
        """Who sends these headers; None for nobody who is known."""
        if not self.need_token:
            return LOCAL
        secret, cookies = _secrets(headers)
        principal = self.of_token(secret) if secret else None
        return principal or next(filter(None, map(self.of_cookie, cookies)), None)

    async def find_fresh(self, headers: Headers) -> Principal | None:
        """As `find`, after a look for what other processes may have made a moment ago."""
        if any(_secrets(headers)):
            await self.refresh()
        return self.find(headers)

    async def refresh(self) -> None:
        """Read all again, unless somebody just did."""
        if time.monotonic() - self._refreshed_s >= REFRESH_S:
            self._refreshed_s = time.monotonic()
            await to_thread.run_sync(self._load, limiter=self._limiter)

    def of_token(self, secret: str) -> Principal | None:
        """Whose token it is."""
        token = self._tokens.get(digest_of(secret))
        if token is not None:
            return Principal(token.name, _implied(token.roles), token.id)
        if self.settings.token and hmac.compare_digest(secret.encode("utf-8", "replace"), self.settings.token.encode()):
            return Principal(SERVER_TOKEN, EVERYTHING)
        return None

    def of_cookie(self, cookie: str) -> Principal | None:
        """Whose session it is."""
        session = self._sessions.get(digest_of(cookie))
        if session is None or session.expires_ns <= time.time_ns():
            return None
        if session.token_id is None:
            is_ours = bool(self.settings.token) and hmac.compare_digest(session.proof, self.proof(cookie))
            return Principal(SERVER_TOKEN, EVERYTHING, None, session.digest) if is_ours else None
        token = next((each for each in self._tokens.values() if each.id == session.token_id), None)
        return None if token is None else Principal(token.name, _implied(token.roles), token.id, session.digest)

    def proof(self, cookie: str) -> str:
        """Binds a session to --token: keyed by the cookie, which is not stored, so that nobody can guess from it."""
        return hmac.new(cookie.encode("utf-8", "replace"), self.settings.token.encode(), hashlib.sha256).hexdigest()

    def is_current(self, principal: Principal) -> bool:
        """Whether who was found before would be found now."""
        if principal is LOCAL:
            return not self.need_token
        if principal.session and principal.session not in self._sessions:
            return False
        return principal.token_id is None or any(each.id == principal.token_id for each in self._tokens.values())

    def _run(self) -> None:
        while not self._ended.wait(POLL_S):
            self._load()

    def _load(self) -> None:
        try:
            self.load()
        except DatabaseError as error:
            if not self._is_failing:
                logger.warning("tokens cannot be read; those known so far hold: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False


def _secrets(headers: Headers) -> tuple[str, list[str]]:
    """The token and the cookies that were sent; empty where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else "", cookies_of(headers)


def cookies_of(headers: Headers) -> list[str]:
    """What may be a session of ours: another service of this host may have set one of the same name.

    Split by hand: `http.cookies` would drop ours for another's before it that has a name it does not like, and a
    dictionary keeps one of a name.
    """
    ours = cookie_name(headers)
    pairs = (pair.partition("=") for line in headers.getlist("cookie") for pair in line.split(";"))
    return list(islice((value.strip() for name, _, value in pairs if name.strip() == ours), MAX_COOKIES))


def cookie_name(headers: Headers) -> str:
    """What the session's cookie is called where the browser has found this server.

    Browsers keep cookies by host and send them to every port of it: under one name two servers of a host would end
    each other's sessions. The port is that of the Host header, which is the browser's own as long as a proxy passes it
    on; there is none in it for 80 and 443. A proxy that changes it does so for every request, so the name still holds.
    """
    port = host_port(headers.get("host", ""))
    return COOKIE if port is None else f"{COOKIE}_{port}"


def _implied(roles: tuple[str, ...]) -> frozenset[str]:
    """`admin` may look, too."""
    return frozenset(roles) | ({VIEW} if ADMIN in roles else frozenset())
