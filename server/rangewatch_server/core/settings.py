"""The server's settings: arguments of `rangewatch serve`, else the environment, else a default."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from platformdirs import user_data_path
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from rangewatch_server.core import otlp
from rangewatch_server.core.errors import DatabaseError
from rangewatch_server.core.logs import FORMATS, LEVELS

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8642
SYNCS = ("normal", "full")
LIVE_S = 15.0  # a rank that said nothing for this long is no longer live; agents send a heartbeat every 5 s
MOST_KEEP_DAYS, MOST_KEEP_GB = 1e6, 1e9  # 2,700 years and an exabyte, as GET /api/v1/prune takes them
MOST_TOKEN = 4_096  # characters: what the login form takes; a header has room for more
MAX_STREAMS = 100  # a browser holds at most 6 to one server, unless it speaks HTTP/2 to a proxy
ALERTS_PERCENT = 1.5  # of one core; the server may take 0.37 of one with 200 ranks
LEAST_OTLP_S, MOST_OTLP_S = 1.0, 3600.0
LEAST_FREE_BYTES = 256 << 20  # below this a busy fleet has minutes until commits fail; /readyz says so


class SettingsError(ValueError):
    """A setting that cannot be; the text says what to do."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one server."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    db: str = ""
    """SQLAlchemy URL or path of a SQLite file; empty: `rangewatch.db` in the user's data directory."""
    token: str = ""
    """When set it lets agents and browsers do everything; tokens that may do less are in the database."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names under which browsers reach this server (Host header), beside loopback and `host`."""
    tls_cert: str = ""
    """File of the certificate chain (PEM); with `tls_key` the server speaks https only."""
    tls_key: str = ""
    forwarded_allow_ips: str = ""
    """Addresses of proxies whose X-Forwarded-For and -Proto are believed; `*` for any."""
    max_streams: int = MAX_STREAMS
    """Live pages that one client may have open."""
    live_s: float = LIVE_S
    sync: str = "normal"
    """`full`: what is acknowledged survives a power cut too, at the price of waiting for the disk."""
    keep_days: float | None = None
    """Steps older than this lose detail, but around events; None keeps all."""
    keep_gb: float | None = None
    """Above this size in gigabytes the oldest steps lose detail, and at last the oldest ended runs go."""
    least_free_bytes: int = LEAST_FREE_BYTES
    """Room on the SQLite file's disk below which the server is not ready; below an eighth of it messages wait."""
    alerts: str = ""
    """A TOML file: thresholds of rules, and where alerts are sent (docs/alerts.md)."""
    alerts_percent: float = ALERTS_PERCENT
    """Of one core, what the rules may take in the mean; the more, the sooner alerts come."""
    otlp: str = ""
    """Base URL of an OpenTelemetry collector that metrics and alerts are pushed to, by OTLP over HTTP."""
    otlp_every_s: float = 60.0
    log_format: str = "text"
    log_level: str = "warning"

    @property
    def address(self) -> str:
        """The URL to paste into a browser or RANGEWATCH_URL."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 - compared, not bound
        scheme = "https" if self.tls_cert else "http"
        return f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"

    @property
    def reserved_bytes(self) -> int:
        """Room left to pruning, deleting and the audit; by default 32 MiB, twice what the WAL holds at most."""
        return self.least_free_bytes // 8

    @property
    def database_url(self) -> URL:
        """Where the database is. Raises `DatabaseError` when `db` cannot be read as that."""
        if "://" in self.db:
            return _parsed(self.db)
        try:
            path = Path(self.db).expanduser() if self.db else user_data_path("rangewatch") / "rangewatch.db"
            return URL.create("sqlite", database=str(path.resolve()))
        except RuntimeError as error:  # ~nobody, or links that go round
            raise DatabaseError(f"--db: {error}") from None


def check(settings: Settings) -> Settings:
    """Raises `SettingsError` for what would be unsafe or cannot work."""
    if not 0 <= settings.port <= 65535:
        raise SettingsError(f"--port {settings.port}: must be 0 to 65535")
    if settings.sync not in SYNCS:
        raise SettingsError(f"--sync {settings.sync!r}: must be one of {', '.join(SYNCS)}")
    _check_limit("--keep-days", settings.keep_days, MOST_KEEP_DAYS)
    _check_limit("--keep-gb", settings.keep_gb, MOST_KEEP_GB)
    if settings.least_free_bytes < 0:
        raise SettingsError("--min-free-mib must be 0 or more")
    _check_access(settings)
    if settings.otlp and (wrong := otlp.problem(settings.otlp)):
        raise SettingsError(f"--otlp: {wrong}")
    if not 0 < settings.alerts_percent <= 100:
        raise SettingsError("--alerts-percent must be above 0 and at most 100")
    if not LEAST_OTLP_S <= settings.otlp_every_s <= MOST_OTLP_S:
        raise SettingsError(f"--otlp-every must be {LEAST_OTLP_S:g} to {MOST_OTLP_S:g} seconds")
    if settings.log_format not in FORMATS:
        raise SettingsError(f"--log-format {settings.log_format!r}: must be one of {', '.join(FORMATS)}")
    if settings.log_level not in LEVELS:
        raise SettingsError(f"--log-level {settings.log_level!r}: must be one of {', '.join(LEVELS)}")
    return settings


def _check_access(settings: Settings) -> None:
    if settings.token != settings.token.strip() or not (settings.token.isascii() and settings.token.isprintable()):
        raise SettingsError("--token must be printable ASCII without spaces around it: no header carries another")
    if len(settings.token) > MOST_TOKEN:
        raise SettingsError(f"--token must have at most {MOST_TOKEN} characters")
    for each in settings.allowed_hosts:
        if not own_name(each):
            raise SettingsError(f"--allow-host {each!r}: must be a name or an address, as in a URL")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise SettingsError("--tls-cert and --tls-key: give both, or neither")
    if settings.max_streams < 1:
        raise SettingsError("--max-streams must be 1 or more")
    _check_proxies(settings.forwarded_allow_ips)


def check_reach(settings: Settings, has_tokens: Callable[[], bool]) -> None:
    """Raises `SettingsError` for an address that others reach and no token. `has_tokens`: whether one was made."""
    if not is_loopback(settings.host) and not settings.token and not has_tokens():
        raise SettingsError(
            f"refusing to listen on {settings.host} without a token: anyone who reaches it could read and write runs. "
            "Make tokens (rangewatch token create), give --token (or RANGEWATCH_TOKEN), or listen on 127.0.0.1."
        )


def _check_proxies(given: str) -> None:
    """As uvicorn reads them: what it cannot read it never believes, and says nothing."""
    for each in (name.strip() for name in given.split(",") if given.strip() not in ("", "*")):
        if not _is_network(each):
            raise SettingsError(
                f"--forwarded-allow-ips {each!r}: must be addresses, networks (10.0.0.0/8, not 10.0.0.1/8), or * alone"
            )


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _check_limit(name: str, given: float | None, most: float) -> None:
    if given is not None and not 0 < given <= most:  # NaN is neither
        raise SettingsError(f"{name} {given:g}: must be more than 0, and at most {most:g}")


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """The name in a Host header, without its port, in lower case; empty for one that no browser sends."""
    try:
        parts = urlsplit(f"//{host}")
        is_plain = parts.netloc == host and "@" not in host and parts.port != 0  # `port` raises for what is no number
    except ValueError:
        return ""
    return parts.hostname or "" if is_plain else ""


def host_port(host: str) -> int | None:
    """The port in a Host header; None without one, and of one that no browser sends."""
    return urlsplit(f"//{host}").port if host_name(host) else None


def own_name(text: str) -> str:
    """What `host_name` says of a Host header that means this: an IPv6 address may come without its brackets."""
    return host_name(text) or host_name(f"[{text}]")


def _parsed(given: str) -> URL:
    """Not the parser's words: they may hold a part of the password."""
    try:
        url = make_url(_with_driver(given))
    except (ArgumentError, ValueError):  # ValueError: the port
        raise DatabaseError("--db is no URL: give sqlite:///FILE or postgresql://USER@HOST:PORT/NAME") from None
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise DatabaseError("--db names no file: SQLite needs one, sqlite:///FILE or just its path")
    return url


def _with_driver(url: str) -> str:
    for plain in ("postgresql://", "postgres://"):
        if url.startswith(plain):
            return "postgresql+psycopg://" + url[len(plain) :]
    return url
