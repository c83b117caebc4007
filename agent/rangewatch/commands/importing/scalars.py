"""What every source gives: the scalars of one run, by name and step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from rangewatch.wire.records import SeriesRows

MOST_NAMES = 1_000
"""Of one run: what a server takes."""
LONGEST_NAME = 4_096
"""Of a series or a run, in bytes, as a server takes it."""
LAST_STEP = 10**12
"""As a server takes it."""
MOST_VALUES = 20_000_000
"""Of one run, some 2 GB of memory here: a million steps of twenty series."""
BATCH_STEPS = 4_096
BATCH_SPANS, SPAN = 128, 64
"""Steps of one batch may lie in so many spans of so many steps: a server folds each of them."""

IN_WORDS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
"""Numbers that JSON does not have, as tools write them in it."""


class ImportFailed(Exception):
    """Why there is nothing to send, in one line."""


class Scalars(msgspec.Struct):
    """One run. A value that was written twice for a step is the one written last, as after a restart."""

    name: str
    values: dict[str, dict[int, float]] = {}
    first_ns: int = 0
    last_ns: int = 0
    """Of the values whose time is known; 0 while none is."""
    is_finished: bool = True
    """False where the source knows of ends, and not of this run's: it was killed, or goes on."""
    kept: int = 0
    left_out: Counter[str] = msgspec.field(default_factory=Counter)
    """Reason -> how many values."""
    remarks: list[str] = []
    """What else is to be said of where they are from."""

    def add(self, name: str, step: int, value: float, time_ns: int) -> None:
        """Keep a value, or count it with the reason why not. `time_ns` is 0 where it is not known."""
        if not 0 <= step <= LAST_STEP:
            self.left_out["of a step that is negative, or too large"] += 1
        elif name not in self.values and not _is_name(name):
            self.left_out["of a name that is empty, too long, or has NUL or a lone surrogate"] += 1
        elif name not in self.values and len(self.values) == MOST_NAMES:
            self.left_out[f"of further names than {MOST_NAMES}"] += 1
        elif self.kept == MOST_VALUES:
            self.left_out[f"after the first {MOST_VALUES}"] += 1
        else:
            self.kept += 1
            self.values.setdefault(name, {})[step] = value
            if time_ns:
                self.first_ns = min(self.first_ns or time_ns, time_ns)
                self.last_ns = max(self.last_ns, time_ns)

    def count(self) -> int:
        """How many values there are."""
        return sum(map(len, self.values.values()))

    def steps(self) -> list[int]:
        """All steps that have a value."""
        return sorted(set().union(*self.values.values()))

    def batches(self, most_series: int) -> Iterator[tuple[SeriesRows, ...]]:
        """All values in pieces that a server takes in one batch: some steps of some names, in order of the steps."""
        names = sorted(self.values)
        for steps in _pieces(self.steps()):
            for start in range(0, len(names), most_series):
                rows = (_rows(name, self.values[name], steps) for name in names[start : start + most_series])
                if found := tuple(each for each in rows if len(each.steps)):
                    yield found


def _pieces(steps: list[int]) -> Iterator[list[int]]:
    piece: list[int] = []
    spans = 0
    for step in steps:
        is_new = not piece or step // SPAN != piece[-1] // SPAN
        if len(piece) == BATCH_STEPS or spans + is_new > BATCH_SPANS:
            yield piece
            piece, spans, is_new = [], 0, True
        piece.append(step)
        spans += is_new
    if piece:
        yield piece


def _rows(name: str, values: dict[int, float], steps: list[int]) -> SeriesRows:
    found = [step for step in steps if step in values]
    return SeriesRows(name, np.array(found, np.int64), np.array([values[step] for step in found], np.float64))


def nanoseconds(time_s: float) -> int:
    """Of seconds since 1970; 0 for what is no such time."""
    return int(time_s * 1e9) if 0 <= time_s < 2**33 else 0  # NaN is not


def below(base: str, top: Path, path: Path) -> str:
    """The name of what is at `path`, where `base` is that of `top`."""
    inner = plain(path.relative_to(top).as_posix())
    return base if inner == "." else f"{base}/{inner}"


def run_name(where: str, shown: str, identity: str = "") -> str:
    """`where/shown identity`; `shown`, which people gave, is cut where all of it is longer than a server takes."""
    shown, identity = plain(shown), plain(identity)
    room = max(LONGEST_NAME - len(f"{where}/ {identity}".encode()), 0)
    shown = shown.encode()[:room].decode(errors="ignore")
    return f"{where}/{' '.join(each for each in (shown, identity) if each)}"


def plain(text: str) -> str:
    """A text as a server takes it in a name: bytes of a path that are no UTF-8 are written out, and NUL is U+FFFD."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\ufffd")


def _is_name(name: str) -> bool:
    try:
        return 0 < len(name.encode()) <= LONGEST_NAME and "\0" not in name
    except UnicodeEncodeError:  # JSON may have half of a pair of surrogates
        return False
