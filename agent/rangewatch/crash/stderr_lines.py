"""Lines of stderr as they are sent: the last ones, as plain text, without what looks like a secret. No torch."""

from __future__ import annotations

import os
import re
import time

import msgspec

from rangewatch.core import limits
from rangewatch.core.redaction import HIDDEN, redacted
from rangewatch.crash.memory.text_ring import Tail
from rangewatch.wire.events import Stderr, event
from rangewatch.wire.records import Event

UNREADABLE = "\N{REPLACEMENT CHARACTER}"
_ESCAPES = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[ -/]{0,8}[0-~]"
)


def last_lines(tail: Tail, token: str | None = None) -> tuple[tuple[str, ...], bool]:
    """The last lines of a text, as a terminal would have shown them, and whether there were others before them.

    Secrets, and the server's own `token`, go first, over all lines and before any is cut: what is left of half a secret
    is not known for one.
    """
    data = tail.data.partition(b"\n")[2] if tail.is_cut else tail.data
    text = _ESCAPES.sub("", data.decode("utf-8", "replace"))
    if token:
        text = text.replace(token, HIDDEN)
    every = [_shown(line) for line in redacted(text).rstrip().split("\n")]
    lines, left = [], limits.STDERR_CHARACTERS
    for line in reversed(every[-limits.STDERR_LINES :]):
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    is_cut = tail.is_cut or len(lines) < len(every)
    return (() if lines == [""] else tuple(reversed(lines))), is_cut


def _shown(line: str) -> str:
    """Of a progress bar its last state: what comes after the last carriage return."""
    line = line.rstrip("\r").rpartition("\r")[2].expandtabs(8)
    if not line.isprintable():
        line = "".join(each if each.isprintable() else " " if each.isspace() else UNREADABLE for each in line)
    most = limits.STDERR_LINE_CHARACTERS
    return line.rstrip() if len(line) <= most else line[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def with_tail(source: Stderr, tail: Tail, token: str | None = None) -> Stderr:
    """`source` with its lines."""
    lines, is_cut = last_lines(tail, token)
    return msgspec.structs.replace(source, lines=lines, is_cut=is_cut, dropped_count=tail.dropped_count)


def stderr_event(details: Stderr, step: int) -> Event:
    """The event of now."""
    return event(details, time.time_ns(), step)


def read_file(descriptor: int) -> Tail:
    """The end of the file behind stderr. Raises `OSError`. May wait as long as its file system does."""
    size = os.fstat(descriptor).st_size
    begin = max(0, size - limits.STDERR_BYTES)
    return Tail(os.pread(descriptor, limits.STDERR_BYTES, begin), begin > 0)
