"""Log lines on stderr, as text or one JSON object a line; one format for our records and uvicorn's.

Names of runs come from the network: whatever is not printable is escaped, so that no name can begin a line of its own.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import datetime, timezone
from typing import Any, TextIO

from rangewatch_server.core.errors import BrokenOff

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
OURS = ("rangewatch", "uvicorn")
LOG_AGAIN_S = 60.0  # what a stranger's bytes make uvicorn say, which any port scan repeats as fast as it can
MOST_CHARACTERS = 4_000  # of one text: a name may have 4 KiB, and a line should stay one that tools accept

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message", "taskName"}


def configure(form: str, level: str, stream: TextIO = sys.stderr) -> None:
    """Send every record to `stream`: ours and uvicorn's from `level` on, other libraries' from warning on."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    number: int = getattr(logging, level.upper())
    root.setLevel(max(number, logging.WARNING))
    for name in OURS:
        logging.getLogger(name).setLevel(number)
    logging.getLogger("uvicorn.error").filters[:] = [_RateLimited(), _not_broken_off]


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`: run, rank, code and the like."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD and name[:1] != "_"}


class _RateLimited(logging.Filter):
    """uvicorn's warnings, each a fixed text about some request that is none: one a minute of each."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is logged."""
        if record.levelno != logging.WARNING or record.args:
            return True
        now_s, last_s = time.monotonic(), self._logged_s.get(str(record.msg))
        if last_s is not None and now_s - last_s < LOG_AGAIN_S:
            return False
        self._logged_s[str(record.msg)] = now_s
        return True


def _not_broken_off(record: logging.LogRecord) -> bool:
    """Whether it is logged: of an answer that was broken off the log has a line, and no fault is behind it."""
    return not (record.exc_info and isinstance(record.exc_info[1], BrokenOff))


class JsonFormatter(logging.Formatter):
    """`{"time": ..., "level": ..., "logger": ..., "message": ..., <fields>}`; ASCII, so no odd line ends either."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        record_fields: dict[str, Any] = {
            "time": _time(record), "level": record.levelname.lower(), "logger": record.name,
            "message": _cut(record.getMessage()),
        }  # fmt: skip
        for name, value in fields_of(record).items():
            record_fields.setdefault(
                name, value if isinstance(value, (bool, int, float, type(None))) else _cut(str(value))
            )
        if record.exc_info:
            record_fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(record_fields)


class TextFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE name=value ...`; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback if there is one."""
        parts = [f"{_time(record)} {record.levelname} {record.name}: {_printable(record.getMessage())}"]
        parts += [f"{name}={_printable(str(value))}" for name, value in fields_of(record).items()]
        if not record.exc_info:
            return " ".join(parts)
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join([" ".join(parts), *(f"    {_printable(line)}" for line in trace)])


def _time(record: logging.LogRecord) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    at = datetime.fromtimestamp(record.created, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _printable(text: str) -> str:
    text = _cut(text)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}... ({len(text)} characters)"
