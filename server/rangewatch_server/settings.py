"""What the server is told: arguments of `rangewatch serve`, else the environment, else a default."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import msgspec
from platformdirs import user_data_path
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from rangewatch_server.logs import FORMATS, LEVELS
from rangewatch_server.store.engine import SYNCS, DatabaseError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8642
LIVE_S = 15.0  # a rank that said nothing for this long is no longer live; agents send a heartbeat every 5 s
MOST_KEEP_DAYS, MOST_KEEP_GB = 1e6, 1e9  # 2,700 years and an exabyte, as GET /api/v1/prune takes them
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
    """Needed by agents and browsers when set."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names under which browsers reach this server (Host header), beside loopback and `host`."""
    live_s: float = LIVE_S
    sync: str = "normal"
    """`full`: what is acknowledged survives a power cut too, at the price of waiting for the disk."""
    keep_days: float | None = None
    """Steps older than this lose detail, but around events; None keeps all."""
    keep_gb: float | None = None
    """Above this size in gigabytes the oldest steps lose detail, and at last the oldest ended runs go."""
    least_free_bytes: int = LEAST_FREE_BYTES
    """Room on the SQLite file's disk below which the server is not ready."""
    log_format: str = "text"
    log_level: str = "warning"

    @property
    def address(self) -> str:
        """The URL to paste into a browser or RANGEWATCH_URL."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

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
    if not is_loopback(settings.host) and not settings.token:
        raise SettingsError(
            f"refusing to listen on {settings.host} without a token: anyone who reaches it could read and write runs. "
            "Give --token (or RANGEWATCH_TOKEN), or listen on 127.0.0.1."
        )
    if not 0 <= settings.port <= 65535:
        raise SettingsError(f"--port {settings.port}: must be 0 to 65535")
    if settings.sync not in SYNCS:
        raise SettingsError(f"--sync {settings.sync!r}: must be one of {', '.join(SYNCS)}")
    _check_limit("--keep-days", settings.keep_days, MOST_KEEP_DAYS)
    _check_limit("--keep-gb", settings.keep_gb, MOST_KEEP_GB)
    if settings.least_free_bytes < 0:
        raise SettingsError("--min-free-mib must be 0 or more")
    if settings.log_format not in FORMATS:
        raise SettingsError(f"--log-format {settings.log_format!r}: must be one of {', '.join(FORMATS)}")
    if settings.log_level not in LEVELS:
        raise SettingsError(f"--log-level {settings.log_level!r}: must be one of {', '.join(LEVELS)}")
    return settings


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
