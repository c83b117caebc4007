"""One HTTP connection to the server's ingest route, and what each answer means. Never raises for the network's sake.

Connections whose requests end in time: a timeout for each byte is none for a server that sends one a second.

urllib3 has timeouts for connecting and for the next byte. Left alone, a header that trickles in holds the thread for
hours, and a large body has as long to be sent as a connection has to be made.
"""

from __future__ import annotations

import contextlib
import io
import socket
import time
from enum import Enum
from http.client import BadStatusLine, RemoteDisconnected
from typing import Annotated, Any, NamedTuple

import msgspec
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from rangewatch import wire
from rangewatch.core import limits
from rangewatch.core.version import VERSION


class _Reader(io.RawIOBase):
    """What is read from a socket until a moment: then `TimeoutError`."""

    def __init__(self, sock: socket.socket, raw: Any) -> None:
        self._sock, self._raw = sock, raw
        self._deadline_s = time.monotonic() + limits.REPLY_TIMEOUT_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the reply takes too long")
        self._sock.settimeout(min(left_s, limits.READ_TIMEOUT_S))
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()  # it counts as a user of the socket, which is closed after its last
        super().close()


class _Socket:
    """A connected socket, plain or TLS, with a limit for a whole request and one for a whole reply."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(limits.SEND_TIMEOUT_S)  # of all that is given; with TLS of each record, 16 KiB
        self._sock.sendall(data)

    def makefile(self, *args: Any, **options: Any) -> io.BufferedReader:
        """Called once a reply, before its first byte."""
        return io.BufferedReader(_Reader(self._sock, self._sock.makefile("rb", buffering=0)))


class _Connection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.sock = _Socket(self.sock)


class _TlsConnection(HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        self.sock = _Socket(self.sock)


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def pool_manager() -> urllib3.PoolManager:
    """One connection at a time, no retries of its own, and `limits` for connecting, sending and the reply."""
    timeout = urllib3.Timeout(connect=limits.CONNECT_TIMEOUT_S, read=limits.READ_TIMEOUT_S)
    manager = urllib3.PoolManager(num_pools=1, maxsize=1, timeout=timeout, retries=False)
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
    return manager


class Outcome(Enum):
    """What to do with the message that was sent."""

    STORED = "stored"
    NEEDS_OPENING = "needs_opening"
    REJECTED = "rejected"
    UNAUTHORIZED = "unauthorized"
    RETRY = "retry"


_Word = Annotated[str, msgspec.Meta(max_length=20)]
_Pattern = Annotated[str, msgspec.Meta(max_length=limits.NAME_CHARACTERS)]


class Raised(msgspec.Struct, frozen=True):
    """An alert of the run, in a command of the kind `alert`."""

    rule: Annotated[str, msgspec.Meta(max_length=100)]
    severity: _Word
    summary: Annotated[str, msgspec.Meta(max_length=2_000)]
    rank: int | None = None
    step: int | None = None
    tensor: _Pattern | None = None
    kind: _Word | None = None


class Command(msgspec.Struct, frozen=True):
    """What the server asks of the agent, in the answer to a batch (docs/wire.md)."""

    id: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    kind: _Word
    steps: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    modules: Annotated[tuple[_Pattern, ...], msgspec.Meta(max_length=limits.COMMANDS)] = ()
    level: _Word = ""
    alert: Raised | None = None


class OtherProcess(msgspec.Struct, frozen=True):
    """One that sends as the same rank of the same run as this one."""

    host: Annotated[str, msgspec.Meta(max_length=limits.NAME_CHARACTERS)]
    pid: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class RunHealth(msgspec.Struct, frozen=True):
    """What only the server knows of the run, as it stands."""

    open_alerts: _Count
    critical_alerts: _Count
    gpus_in_trouble: _Count
    straggler_cost_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    """Seconds that a step takes longer for one rank or host; 0 where none is named."""


class Reply(NamedTuple):
    """The server's answer, or that there was none. `retry_after_s` None: the sender chooses."""

    outcome: Outcome
    detail: str
    retry_after_s: float | None = None
    is_answered: bool = True
    """Whether an HTTP answer came at all."""
    commands: tuple[Command, ...] = ()
    send_every_s: float = 0.0
    """Least seconds between two batches, as the server asks; 0: as the agent likes."""
    also_live: OtherProcess | None = None
    contiguous: int = -1
    """Of what is stored: everything up to this sequence."""
    health: RunHealth | None = None


class _ErrorBody(msgspec.Struct):
    code: str = ""
    error: str = ""


class _AcceptedBody(msgspec.Struct):
    """Decoded strictly, and so whole: a body that is cut off, or somebody else's, says nothing of what is stored."""

    contiguous: Annotated[int, msgspec.Meta(ge=-1, lt=2**62)]


class _Commands(msgspec.Struct):
    commands: tuple[msgspec.Raw, ...] = ()


class _Pace(msgspec.Struct):
    send_every_s: float = 0.0


class _Others(msgspec.Struct):
    also_live: OtherProcess | None = None


class _Health(msgspec.Struct):
    health: RunHealth | None = None


_ERROR, _ACCEPTED = msgspec.json.Decoder(_ErrorBody), msgspec.json.Decoder(_AcceptedBody)
_COMMANDS, _PACE = msgspec.json.Decoder(_Commands), msgspec.json.Decoder(_Pace)
_OTHERS, _HEALTH = msgspec.json.Decoder(_Others), msgspec.json.Decoder(_Health)
_FINAL = {
    "not_zstd": 400, "truncated": 400, "bad_header": 400, "wrong_statistic": 400, "unsupported_version": 400,
    "too_large": 413, "shape_mismatch": 422, "invalid_value": 422, "unstorable": 422,
}  # fmt: skip
"""The server's refusals for good, each with its status (docs/wire.md). A status alone is none: nginx answers 400 to
plain HTTP on its port for HTTPS, and a proxy 413 to what it finds too large."""
_NEEDS_OPENING = {"unknown_run", "unknown_catalogue"}


class Transport:
    """Posts encoded messages. Follows no redirect (the token would go along) and reads a bounded part of each reply.

    Nothing was asked to be compressed: a reply that is will not be unpacked, however small it came.
    """

    def __init__(self, url: str, token: str | None, *, has_ended: bool = False) -> None:
        """`has_ended`: the process that made the messages is gone, and its spool is sent."""
        self.url = f"{url.rstrip('/')}/api/v1/ingest"
        self._headers = {"Content-Type": "application/zstd", "User-Agent": f"rangewatch/{VERSION}"}
        if has_ended:
            self._headers[wire.PROCESS_HEADER] = wire.PROCESS_ENDED
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = pool_manager()

    def post(self, body: bytes) -> Reply:
        """Send one message and wait for the answer, at most the timeouts of `limits`."""
        try:
            response = self._pool.request(
                "POST", self.url, body=body, headers=self._headers, redirect=False, preload_content=False,
                decode_content=False,
            )  # fmt: skip
            text = _read_bounded(response)
            response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            return Reply(Outcome.RETRY, _short(error), is_answered=False)
        return _meaning(response.status, response.headers.get("Retry-After"), text)

    def close(self) -> None:
        """Close the connection."""
        self._pool.clear()


def _short(error: Exception) -> str:
    """urllib3 puts objects before the reason, such as `HTTPConnection(host=...): Failed: [Errno 111] Refused`."""
    cause = error.args[-1] if error.args and isinstance(error.args[-1], Exception) else error
    if isinstance(cause, BadStatusLine) and not isinstance(cause, RemoteDisconnected):
        return "its answer is no HTTP"  # the error has what it sent instead
    return (str(cause).rpartition(": ")[2] or type(cause).__name__)[:200]


def _read_bounded(response: urllib3.BaseHTTPResponse) -> bytes:
    """The body as far as it comes in time. What is cut off says nothing of what became of the message."""
    text = b""
    with contextlib.suppress(urllib3.exceptions.ReadTimeoutError):
        while len(text) < limits.REPLY_BYTES:
            piece = response.read1(65536)
            if not piece:
                return text
            text += piece
    response.close()  # what is left unread must not be taken for the next answer
    return text


def _meaning(status: int, retry_after: str | None, text: bytes) -> Reply:
    error = _error_body(text)
    detail = _printable(f"HTTP {status} {error.code} {error.error}".strip()[:300])
    if status == 202:
        try:
            contiguous = _ACCEPTED.decode(text).contiguous
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Reply(Outcome.RETRY, f"{detail}, and no word of what is stored")
        return Reply(
            Outcome.STORED, detail, commands=_commands(text), send_every_s=_send_every_s(text),
            also_live=_also_live(text), contiguous=contiguous, health=_health(text),
        )  # fmt: skip
    if status == 409 and error.code in _NEEDS_OPENING:
        return Reply(Outcome.NEEDS_OPENING, detail)
    if status in {401, 403}:
        return Reply(Outcome.UNAUTHORIZED, detail)
    if _FINAL.get(error.code) == status:
        return Reply(Outcome.REJECTED, detail)
    if 400 <= status < 500 and not error.code:
        detail += ", which is no answer of a Rangewatch server: is the URL right, and what does a proxy before it take?"
    return Reply(Outcome.RETRY, detail, _seconds(retry_after))


def _commands(text: bytes) -> tuple[Command, ...]:
    """Those that can be read: a later server may send others."""
    commands = []
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        for raw in _COMMANDS.decode(text).commands[: limits.COMMANDS]:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                commands.append(msgspec.json.decode(raw, type=Command))
    return tuple(commands)


def _send_every_s(text: bytes) -> float:
    """What the server asks for, bounded; 0 where it says nothing that can be read."""
    try:
        asked = _PACE.decode(text).send_every_s
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0.0
    return min(max(asked, 0.0), limits.PACE_LAST_S)


def _also_live(text: bytes) -> OtherProcess | None:
    """Left out by most answers, and by servers that do not know of it."""
    try:
        return _OTHERS.decode(text).also_live
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _health(text: bytes) -> RunHealth | None:
    """Left out where no rank of the run takes alerts, and by servers that do not know of it."""
    try:
        return _HEALTH.decode(text).health
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _printable(text: str) -> str:
    """It reaches a terminal, which obeys an ESC, and logs, where a newline begins another record."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _error_body(text: bytes) -> _ErrorBody:
    try:
        return _ERROR.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _ErrorBody()


def _seconds(retry_after: str | None) -> float | None:
    """`Retry-After` in seconds. The date form is not read: the server here sends seconds."""
    if retry_after is None or not retry_after.strip().isdecimal():
        return None
    return min(float(retry_after.strip()), limits.RETRY_AFTER_LAST_S)
