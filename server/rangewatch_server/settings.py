"""What the server is told: arguments of `rangewatch serve`, else the environment, else a default."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import msgspec
from platformdirs import user_data_path
from sqlalchemy import URL, make_url

from rangewatch_server.logs import FORMATS, LEVELS
from rangewatch_server.store.engine import SYNCS

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8642
LIVE_S = 15.0  # a rank that said nothing for this long is no longer live; agents send a heartbeat every 5 s
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
        """Where the database is."""
        if "://" in self.db:
            return make_url(_with_driver(self.db))
        path = Path(self.db).expanduser() if self.db else user_data_path("rangewatch") / "rangewatch.db"
        return URL.create("sqlite", database=str(path.resolve()))


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
    if settings.least_free_bytes < 0:
        raise SettingsError("--min-free-mib must be 0 or more")
    if settings.log_format not in FORMATS:
        raise SettingsError(f"--log-format {settings.log_format!r}: must be one of {', '.join(FORMATS)}")
    if settings.log_level not in LEVELS:
        raise SettingsError(f"--log-level {settings.log_level!r}: must be one of {', '.join(LEVELS)}")
    return settings


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _with_driver(url: str) -> str:
    for plain in ("postgresql://", "postgres://"):
        if url.startswith(plain):
            return "postgresql+psycopg://" + url[len(plain) :]
    return url
