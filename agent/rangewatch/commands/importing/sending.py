"""Sends the scalars of a run as its rank 0 would have, once: what is sent again is known by its contents."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable

import numpy as np

from rangewatch import statistics, wire
from rangewatch.client.server_api import ServerError, Unavailable
from rangewatch.commands.importing.scalars import Scalars
from rangewatch.core.version import VERSION
from rangewatch.delivery.transport import Outcome, Transport
from rangewatch.wire.messages import MAX_SERIES
from rangewatch.wire.records import Batch, Catalogue, Event, RankInfo, SeriesRows, StreamHeader

WAIT_S = 60.0
"""For a server that is busy or away."""
PAUSE_S = 1.0
CATALOGUE = Catalogue(statistics.ALL, ())


def send(scalars: Scalars, source: str, transport: Transport, reported: Callable[[int, int], None]) -> None:
    """Send all; `reported(batches that are stored, batches in all)` after each. Raises `ServerError`.

    The incarnation is a digest of the values, and of whether the run has ended: the same again are duplicates to the
    server, and further ones of a log that has grown are a newer incarnation, which stands in place of the older one.
    """
    pieces, steps = list(scalars.batches(MAX_SERIES)), scalars.steps()
    first = Event("attached", scalars.first_ns, steps[0], f"imported from {source}")
    last = Event("finished", scalars.last_ns, steps[-1])
    info = _info(scalars)
    _post(transport, wire.encode(StreamHeader(info, CATALOGUE)))
    for sequence, series in enumerate(pieces):
        is_end = scalars.is_finished and sequence == len(pieces) - 1
        events = (first,) * (sequence == 0) + (last,) * is_end
        _post(transport, wire.encode(_batch(info, sequence, series, events)))
        reported(sequence + 1, len(pieces))


def _info(scalars: Scalars) -> RankInfo:
    return RankInfo(
        run=scalars.name, rank=0, world_size=1, local_rank=0, host=socket.gethostname(), incarnation=_digest(scalars),
        started_ns=scalars.first_ns, versions={"rangewatch": VERSION},
    )  # fmt: skip


def _digest(scalars: Scalars) -> str:
    digest = hashlib.blake2b(scalars.name.encode(errors="surrogatepass"), digest_size=16)
    if not scalars.is_finished:  # the same values with their end are not the same
        digest.update(b"\0goes on\0")
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
            raise Unavailable(f"{transport.url} does not take it now: {reply.detail}; the same command goes on")
        time.sleep(PAUSE_S if reply.retry_after_s is None else min(reply.retry_after_s, WAIT_S))
