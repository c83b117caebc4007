"""A run whose rows are arrays of this process: read as the server reads steps that are not in tiles yet.

No database, file or thread. How rows are merged, coarsened, summed up and cut is the server's own code; what is here is
only where they come from. `test_memory.py` holds it against the real store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from rangewatch import wire
from rangewatch.wire.events import MergedSteps
from rangewatch.wire.records import Batch, Event, StreamHeader, TensorEntry
from rangewatch_server.query.events import Shared, StoredEvent
from rangewatch_server.query.reader import Reader, RunReader, columns_of
from rangewatch_server.query.slices import Cache, Damage, RunNames, Stream, StreamSlices
from rangewatch_server.store.exit_state import OPEN, state_after
from rangewatch_server.store.names import KnownCatalogue, tensor_identity, tensors_of
from rangewatch_server.store.rows import Raw, clip, raws_of

LIVE_NS = 15 * 10**9


@dataclasses.dataclass
class Told:
    """What one process of a rank told: as a row of `streams`, of which nothing is in tiles, and its rows."""

    id: int
    rank: int
    ordinal: int
    incarnation: str
    info: bytes
    state: str = OPEN
    last_seen_ns: int = 0
    contiguous: int = -1
    frontier: int = 0
    rewrites: int = 0
    thin_step: int = 0
    thin_level: int = 0
    first_step: int | None = None
    last_step: int | None = None
    sequences: set[int] = dataclasses.field(default_factory=set)
    raws: list[Raw] = dataclasses.field(default_factory=list)

    def add(self, raw: Raw) -> None:
        """Rows of one part, ascending in steps."""
        first, last = int(raw.steps[0]), int(raw.steps[-1])
        self.first_step = first if self.first_step is None else min(self.first_step, first)
        self.last_step = last if self.last_step is None else max(self.last_step, last)
        self.raws.append(raw)


class Memory:
    """What all ranks of one run told."""

    def __init__(self, run_id: int = 1) -> None:
        self.run_id = run_id
        self.cache = Cache()
        self.streams: dict[tuple[int, str], Told] = {}
        self.catalogues: dict[str, KnownCatalogue] = {}
        self.entries: dict[str, TensorEntry] = {}
        self.series: dict[str, int] = {}
        self.events: list[StoredEvent] = []

    def take(self, message: StreamHeader | Batch) -> None:
        """As the server does, without its checks."""
        if isinstance(message, StreamHeader):
            self._open(message)
        else:
            self._add(message)

    def run(self) -> RunReader:
        """The run as it is now."""
        about = {"created_ns": 0, "title": "", "tags": "[]", "note": "", "archived_ns": None}
        no_database: Any = None
        row = SimpleNamespace(id=self.run_id, name="run", **about)
        return RunReader(Reader(no_database, self.cache, LIVE_NS), row, MemorySource(self))

    def _open(self, opening: StreamHeader) -> None:
        info = opening.info
        ordinal = 1 + sum(rank == info.rank for rank, _ in self.streams)
        made = Told(len(self.streams) + 1, info.rank, ordinal, info.incarnation, msgspec.json.encode(info))
        self.streams.setdefault((info.rank, info.incarnation), made)
        keys = [tensor_identity(each) for each in opening.catalogue.tensors]
        for key, entry in zip(keys, opening.catalogue.tensors, strict=True):
            self.entries.setdefault(key, entry)
        ordinals = {key: ordinal for ordinal, key in enumerate(self.entries)}
        found = KnownCatalogue(opening.catalogue.statistics, np.array([ordinals[key] for key in keys], np.int64))
        self.catalogues[wire.catalogue_digest(opening.catalogue)] = found

    def _add(self, batch: Batch) -> None:
        assert not batch.samples, "samples are read from tables alone"
        stream, known = self.streams[batch.rank, batch.incarnation], self.catalogues[batch.catalogue]
        if batch.sequence in stream.sequences:
            return
        stream.sequences.add(batch.sequence)
        for rows in batch.series:
            self.series.setdefault(rows.name, len(self.series))
        for raw in raws_of(batch, known.ordinals, known.statistics, self.series):
            stream.add(raw)
        for event in batch.events:
            self._event(stream, event)

    def _event(self, stream: Told, event: Event) -> None:
        assert event.kind != MergedSteps.KIND, "steps that share a row are read from tables alone"
        stream.state = state_after(stream.state, event)
        about = stream.rank, stream.id, event.time_ns, event.step, event.kind, event.message
        self.events.append(StoredEvent(len(self.events) + 1, *about, msgspec.json.encode(event.data)))


class MemorySource:
    """The source of the run of a `Memory`. Samples and steps that share a row it has none."""

    has_merged_ranks = False

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def stream_rows(self) -> Iterable[Told]:
        return sorted(self._memory.streams.values(), key=lambda each: (each.rank, each.ordinal))

    def names(self) -> RunNames:
        memory = self._memory
        key = (memory.run_id, "names", len(memory.catalogues), len(memory.series))
        found: RunNames | None = memory.cache.get(key)
        if found is None:
            tensors = tensors_of(list(memory.entries.values()))
            known = {each.name: each for kept in memory.catalogues.values() for each in kept.statistics}
            found = RunNames(
                memory.run_id,
                columns_of(dict(memory.series), tuple(known.values()), key),
                lambda: tensors,
                lambda: tensors,
            )
            memory.cache.put(key, found, 1_000)
        return found

    def tensor(self, ordinal: int) -> TensorEntry:
        return self.names().tensors.entries[ordinal]

    def slices(self, names: RunNames, stream: Stream, damage: set[Damage], rows: Any) -> StreamSlices:
        no_database: Any = None
        found = MemorySlices(no_database, self._memory.cache, names, stream, damage, rows)
        found.raws = next(each.raws for each in self._memory.streams.values() if each.id == stream.id)
        return found

    def events(
        self, kind: str, most: int, *, rank: int | None = None, stream_id: int | None = None,
        before: int | None = None, step: int | None = None,
    ) -> list[StoredEvent]:  # fmt: skip
        found = (
            each
            for each in reversed(self._memory.events)
            if each.kind == kind and rank in (None, each.rank) and stream_id in (None, each.stream_id)
        )
        return [each for each in found if (before is None or each.step < before) and step in (None, each.step)][:most]

    def last_events(self, streams: Sequence[int], kinds: Sequence[str]) -> list[StoredEvent]:
        newest = {(each.stream_id, each.kind): each for each in self._memory.events}
        return [each for (stream, kind), each in newest.items() if stream in streams and kind in kinds]

    def events_version(self, kind: str) -> tuple[int, ...]:
        return (len(self._memory.events),)

    def payloads(self, stream_id: int, source: str, last_step: int, most: int) -> Iterable[bytes]:
        return ()

    def shared_rows(self) -> list[Shared]:
        return []


class MemorySlices(StreamSlices):
    """Of the rows of one process."""

    raws: Sequence[Raw] = ()

    def _batches(self, start: int) -> list[Raw]:
        return [clip(raw, start, 2**62) for raw in self.raws]
