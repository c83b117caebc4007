"""The scalars of one run, by name and step, and how they are sent: as its rank 0 would have."""

from __future__ import annotations

import hashlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from rangewatch import statistics, wire
from rangewatch.client.connection import ServerError, Unavailable
from rangewatch.core.version import VERSION
from rangewatch.delivery.transport import Outcome, Transport
from rangewatch.wire.messages import MAX_SERIES
from rangewatch.wire.records import Batch, Catalogue, Event, RankInfo, SeriesRows, StreamHeader

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

WAIT_S = 60.0
"""For a server that is busy or away."""
PAUSE_S = 1.0
CATALOGUE = Catalogue(statistics.ALL, ())


class ImportFailed(Exception):
    """Why there is nothing to send, in one line."""


class Scalars(msgspec.Struct):
    """One run. A value that was written twice for a step is the one written last, as after a restart."""

    name: str
    values: dict[str, dict[int, float]] = {}
    first_ns: int = 0
    last_ns: int = 0
    """Of the values whose time is known; 0 while none is."""
    added: int = 0
    """Of values given, those of the same step and name included."""
    left_out: Counter[str] = msgspec.field(default_factory=Counter)
    """Reason -> how many values."""

    def add(self, name: str, step: int, value: float, time_ns: int) -> None:
        """Keep a value, or count it with the reason why not. `time_ns` is 0 where it is not known."""
        if not 0 <= step <= LAST_STEP:
            self.left_out["of a step that is negative, or too large"] += 1
        elif name not in self.values and not _is_name(name):
            self.left_out["of a name that is empty, too long, or has NUL or a lone surrogate"] += 1
        elif name not in self.values and len(self.values) == MOST_NAMES:
            self.left_out[f"of further names than {MOST_NAMES}"] += 1
        elif self.added == MOST_VALUES:
            self.left_out[f"after the first {MOST_VALUES}"] += 1
        else:
            self.added += 1
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
                if batch := tuple(each for each in rows if len(each.steps)):
                    yield batch


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
    own = [step for step in steps if step in values]
    return SeriesRows(name, np.array(own, np.int64), np.array([values[step] for step in own], np.float64))


def nanoseconds(time_s: float) -> int:
    """Of seconds since 1970; 0 for what is no such time."""
    return int(time_s * 1e9) if 0 <= time_s < 2**33 else 0  # NaN is not


def plain(text: str) -> str:
    """A text as a server takes it in a name: bytes of a path that are no UTF-8 are written out, and NUL is U+FFFD."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\ufffd")


def _is_name(name: str) -> bool:
    try:
        return 0 < len(name.encode()) <= LONGEST_NAME and "\0" not in name
    except UnicodeEncodeError:  # JSON may have half of a pair of surrogates
        return False


def send(scalars: Scalars, source: str, transport: Transport, reported: Callable[[int, int], None]) -> None:
    """Send all; `reported(batches that are stored, batches in all)` after each. Raises `ServerError`.

    The incarnation is a digest of the values: the same again are duplicates to the server, and further ones of a log
    that has grown are a newer incarnation, which stands in place of the older one.
    """
    pieces, steps = list(scalars.batches(MAX_SERIES)), scalars.steps()
    first = Event("attached", scalars.first_ns, steps[0], f"imported from {source}")
    last = Event("finished", scalars.last_ns, steps[-1])
    info = _info(scalars)
    _post(transport, wire.encode(StreamHeader(info, CATALOGUE)))
    for sequence, series in enumerate(pieces):
        events = (first,) * (sequence == 0) + (last,) * (sequence == len(pieces) - 1)
        _post(transport, wire.encode(_batch(info, sequence, series, events)))
        reported(sequence + 1, len(pieces))


def _info(scalars: Scalars) -> RankInfo:
    return RankInfo(
        run=scalars.name, rank=0, world_size=1, local_rank=0, host=socket.gethostname(), incarnation=_digest(scalars),
        started_ns=scalars.first_ns, versions={"rangewatch": VERSION},
    )  # fmt: skip


def _digest(scalars: Scalars) -> str:
    digest = hashlib.blake2b(scalars.name.encode(errors="surrogatepass"), digest_size=16)
    for name in sorted(scalars.values):
        values = scalars.values[name]
        digest.update(f"\0{len(name)} {name} {len(values)}\0".encode(errors="surrogatepass"))
        digest.update(np.array(sorted(values), np.int64).tobytes())
        digest.update(np.array([values[step] for step in sorted(values)], np.float64).tobytes())
    return digest.hexdigest()


def _batch(info: RankInfo, sequence: int, series: tuple[SeriesRows, ...], events: tuple[Event, ...]) -> Batch:
    digest = wire.catalogue_digest(CATALOGUE)
    return Batch(info.run, 0, info.incarnation, sequence, digest, series=series, events=events, settled=sequence)


def _post(transport: Transport, body: bytes) -> None:
    give_up_s = time.monotonic() + WAIT_S
    while True:
        reply = transport.post(body)
        if reply.outcome is Outcome.STORED:
            return
        if reply.outcome is not Outcome.RETRY:
            raise ServerError(f"{transport.url} does not take it: {reply.detail}")
        if time.monotonic() > give_up_s or not reply.is_answered:
            raise Unavailable(f"{transport.url} does not accept it now: {reply.detail}; run it again to continue")
        time.sleep(PAUSE_S if reply.retry_after_s is None else min(reply.retry_after_s, WAIT_S))
