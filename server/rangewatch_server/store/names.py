"""Runs, streams, catalogues and ordinals: what names in messages mean in the database.

Everything here is created by the writer only, inside its transaction, and cached; `forget` drops the cache after a
rollback. An ordinal is a tensor's number in its run: it is given once and never changes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray
from sqlalchemy import Connection, func, insert, select

from rangewatch import wire
from rangewatch.wire import WireError
from rangewatch.wire.records import KINDS, Batch, RankInfo, Statistic, StreamHeader, TensorEntry
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.headroom import max_finite_log2
from rangewatch_server.numerics.pyramid import PARTS
from rangewatch_server.store import tables
from rangewatch_server.store.batch_checks import KNOWN, check_ranges, check_statistics

Array = NDArray[Any]

MAX_TENSORS = 200_000  # per run: a dashboard host keeps 100 bytes of each in memory
MAX_SERIES = 1_000  # per run: names a user may log
# Bytes that a catalogue costs while its run is remembered, measured: of each tensor its identity and what merging needs
# of it, but not its name; of each statistic its definition.
TENSOR_BYTES, STATISTIC_BYTES = 300, 400
_ROW_OF_KIND = {kind: row for row, kind in enumerate(KINDS)}
MAX_RUNS = 10_000  # in PostgreSQL each is three partitions; agents of further ones keep what they have and try again


class KnownCatalogue(msgspec.Struct, frozen=True):
    """A catalogue of a run, of which its tensors' numbers are enough: `ordinals[i]` is the run's number of its tensor
    `i`.
    """

    statistics: tuple[Statistic, ...]
    ordinals: Array


class TensorArrays(msgspec.Struct):
    """What merging needs to know of a run's tensors, by ordinal: 32 bytes of each, and no name."""

    log2_max: Array
    kind_rows: Array
    call_index: Array
    position: Array
    """Places 0, 1, 2, ... in call order: agents leave gaps between the call indexes for tensors that show up later."""

    def __len__(self) -> int:
        return len(self.kind_rows)


class Tensors(TensorArrays):
    """The same with their names, some 500 bytes of each."""

    entries: list[TensorEntry] = []


def identity(*parts: object) -> str:
    """A short digest of a name: 128-bit BLAKE2b, hexadecimal."""
    return hashlib.blake2b("\0".join(map(repr, parts)).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def tensor_identity(entry: TensorEntry) -> str:
    """Two entries are the same tensor when name, kind, index and dtype agree."""
    return identity(entry.fqn, entry.kind, entry.index, entry.dtype)


def tensors_of(entries: list[TensorEntry]) -> Tensors:
    """Arrays by ordinal from the entries in ordinal order."""
    arrays = _arrays_of(entries)
    return Tensors(arrays.log2_max, arrays.kind_rows, arrays.call_index, arrays.position, entries)


def _arrays_of(entries: Sequence[TensorEntry | _Placed]) -> TensorArrays:
    call_index = np.array([entry.call_index for entry in entries], np.int64)
    position = np.empty(len(entries), np.int64)
    position[np.argsort(call_index, kind="stable")] = np.arange(len(entries))
    kind_rows = np.array([_ROW_OF_KIND[entry.kind] for entry in entries], np.int64)
    return TensorArrays(max_finite_log2([entry.dtype for entry in entries]), kind_rows, call_index, position)


def load_tensors(connection: Connection, run_id: int) -> Tensors:
    """All tensors of a run. Read from its catalogues, the first that has one saying what it is: ten times as fast as
    from their own rows.
    """
    return tensors_of(_of_catalogues(connection, run_id, _TensorsOnly))


def load_arrays(connection: Connection, run_id: int) -> TensorArrays:
    """The same without their names, which are not even decoded."""
    return _arrays_of(_of_catalogues(connection, run_id, _PlacesOnly))


def _of_catalogues(connection: Connection, run_id: int, type_: Any) -> list[Any]:
    mine = tables.tensors.c.run_id == run_id
    count = connection.execute(select(func.count()).select_from(tables.tensors).where(mine)).scalar_one()
    entries: list[Any] = [None] * count
    missing, after = count, -1
    catalogue = tables.catalogues.c
    of_run = select(catalogue.id, catalogue.body, catalogue.ordinals).where(catalogue.run_id == run_id)
    while missing:
        row = connection.execute(of_run.where(catalogue.id > after).order_by(catalogue.id).limit(1)).first()
        if row is None:  # no database that a server of ours has written
            rows = connection.execute(select(tables.tensors).where(mine).order_by(tables.tensors.c.ordinal))
            return [_entry(each) for each in rows]
        after, ordinals = row.id, np.frombuffer(row.ordinals, "<i8").tolist()
        decoded = msgspec.msgpack.decode(zstandard.decompress(row.body), type=type_).tensors
        for ordinal, entry in zip(ordinals, decoded, strict=True):
            if entries[ordinal] is None:
                entries[ordinal] = entry
                missing -= 1
    return entries


def load_tensor(connection: Connection, run_id: int, ordinal: int) -> TensorEntry | None:
    """One tensor of a run, or None."""
    mine = (tables.tensors.c.run_id == run_id) & (tables.tensors.c.ordinal == ordinal)
    row = connection.execute(select(tables.tensors).where(mine)).first()
    return None if row is None else _entry(row)


def load_series(connection: Connection, run_id: int) -> dict[str, int]:
    """Series name -> ordinal."""
    query = select(tables.series).where(tables.series.c.run_id == run_id).order_by(tables.series.c.ordinal)
    return {row.name: row.ordinal for row in connection.execute(query)}


def load_catalogue(connection: Connection, run_id: int, digest: str) -> KnownCatalogue | None:
    """The catalogue of that digest in the run, or None."""
    row = connection.execute(
        select(tables.catalogues.c.body, tables.catalogues.c.ordinals)
        .where(tables.catalogues.c.run_id == run_id)
        .where(tables.catalogues.c.digest == digest)
    ).first()
    if row is None:
        return None
    catalogue = msgspec.msgpack.decode(zstandard.decompress(row.body), type=_StatisticsOnly)
    return KnownCatalogue(catalogue.statistics, np.frombuffer(row.ordinals, "<i8"))


def load_statistics(connection: Connection, run_id: int) -> tuple[Statistic, ...]:
    """Every statistic that any catalogue of the run has, the newest definition of a name winning."""
    query = (
        select(tables.catalogues.c.body).where(tables.catalogues.c.run_id == run_id).order_by(tables.catalogues.c.id)
    )
    by_name: dict[str, Statistic] = {}
    for body in connection.execute(query).scalars():
        catalogue = msgspec.msgpack.decode(zstandard.decompress(body), type=_StatisticsOnly)
        by_name |= {each.name: each for each in catalogue.statistics}
    return tuple(by_name.values())


class _StatisticsOnly(msgspec.Struct, frozen=True):
    statistics: tuple[Statistic, ...]


class _TensorsOnly(msgspec.Struct, frozen=True):
    tensors: list[TensorEntry]


class _Placed(msgspec.Struct, frozen=True, gc=False):
    kind: str
    dtype: str
    call_index: int


class _PlacesOnly(msgspec.Struct, frozen=True):
    tensors: list[_Placed]


def _entry(row: Any) -> TensorEntry:
    shape = msgspec.json.decode(row.shape, type=tuple[int, ...])
    return TensorEntry(row.fqn, row.kind, row.tensor_index, row.dtype, shape, row.call_index, row.module)


class Names:
    """The writer's view of names; every method runs inside its transaction."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop what is remembered: after a rollback it may never have been stored."""
        self._runs: dict[str, int] = {}
        self._catalogues: dict[tuple[int, str], KnownCatalogue] = {}
        self._tensors: dict[int, TensorArrays] = {}
        self._tensor_ordinals: dict[int, dict[str, int]] = {}
        self._series: dict[int, dict[str, int]] = {}
        self._statistics: dict[int, dict[str, Statistic]] = {}
        self._bytes: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """About how much is remembered of all runs."""
        return sum(self._bytes.values())

    def forget_deleted(self, connection: Connection, run_ids: Iterable[int]) -> set[int]:
        """Several servers: forget the names of those of the runs that another one has deleted; their ids."""
        query = select(tables.runs.c.id).where(
            tables.runs.c.id.in_(list(run_ids)), tables.runs.c.deleted_ns.is_not(None)
        )
        deleted = set(connection.execute(query).scalars())
        self._runs = {name: run_id for name, run_id in self._runs.items() if run_id not in deleted}
        for run_id in deleted:
            self.forget_run(run_id)
        return deleted

    def forget_run(self, run_id: int) -> None:
        """Drop what is remembered of one run: another server may have added to it."""
        for cache in (self._tensors, self._tensor_ordinals, self._series, self._statistics, self._bytes):
            cache.pop(run_id, None)
        self._catalogues = {key: each for key, each in self._catalogues.items() if key[0] != run_id}

    def run(self, connection: Connection, name: str) -> int | None:
        """The run's id, or None when there is none of that name."""
        if name not in self._runs:
            query = select(tables.runs.c.id).where(tables.runs.c.identity == identity(name))
            run_id = connection.execute(query).scalar()
            if run_id is None:
                return None
            self._runs[name] = run_id
        return self._runs[name]

    def lock(self, connection: Connection, name: str) -> None:
        """Several servers: until this transaction ends no other one may give numbers to names of that run."""
        if connection.dialect.name == "sqlite":
            return
        key = int(identity(name)[:15], 16)
        connection.execute(select(func.pg_advisory_xact_lock(key)))
        known = self._runs.pop(name, None)
        if known is not None:
            self.forget_run(known)

    def open_run(self, connection: Connection, name: str) -> int:
        """The run's id, made when new. Raises `WireError` when there are too many."""
        run_id = self.run(connection, name)
        if run_id is None:
            count = select(func.count()).select_from(tables.runs).where(tables.runs.c.deleted_ns.is_(None))
            if connection.execute(count).scalar_one() >= MAX_RUNS:
                raise WireError("too_many_runs", f"the server keeps {MAX_RUNS} runs already: delete or prune some")
            values = {"identity": identity(name), "name": name, "created_ns": time.time_ns()}
            run_id = connection.execute(insert(tables.runs).values(values).returning(tables.runs.c.id)).scalar_one()
            open_partitions(connection, run_id)
            self._runs[name] = run_id
        return run_id

    def open_stream(self, connection: Connection, run_id: int, info: RankInfo) -> int:
        """The stream's id, made when new; a new incarnation gets the next ordinal of its rank."""
        streams = tables.streams
        same_rank = (streams.c.run_id == run_id) & (streams.c.rank == info.rank)
        same = same_rank & (streams.c.incarnation == info.incarnation)
        stream_id = connection.execute(select(streams.c.id).where(same)).scalar()
        if stream_id is not None:
            return int(stream_id)
        ordinal = connection.execute(
            select(func.coalesce(func.max(streams.c.ordinal), 0)).where(same_rank)
        ).scalar_one()
        values = {
            "run_id": run_id, "rank": info.rank, "incarnation": info.incarnation, "ordinal": ordinal + 1,
            "info": msgspec.json.encode(info), "started_ns": info.started_ns, "last_seen_ns": time.time_ns(),
        }  # fmt: skip
        return int(connection.execute(insert(streams).values(values).returning(streams.c.id)).scalar_one())

    def catalogue(self, connection: Connection, run_id: int, digest: str) -> KnownCatalogue | None:
        """A catalogue by its digest, or None when the run has none such."""
        key = (run_id, digest)
        if key not in self._catalogues:
            known = load_catalogue(connection, run_id, digest)
            if known is None:
                return None
            self._catalogues[key] = known
            self._counted(run_id, known)
            self._statistics.pop(run_id, None)  # it may have more of them than this server knows
            if known.ordinals.size and known.ordinals.max() >= len(self.tensors(connection, run_id)):
                self.forget_run(run_id)  # another server has stored it, with tensors that are new
                self._catalogues[key] = known
                self._counted(run_id, known)
        return self._catalogues[key]

    def meaning(self, connection: Connection, run_id: int, batch: Batch) -> tuple[KnownCatalogue, dict[str, int]]:
        """The batch's catalogue and the run's series, those of the batch among them.

        Raises `WireError`: unknown catalogue, or rows unfit for it.
        """
        known = self.catalogue(connection, run_id, batch.catalogue)
        if known is None:
            raise wire.WireError(
                "unknown_catalogue", f"catalogue {batch.catalogue[:40]!r} is not known; send the opening"
            )
        if batch.ranges is not None:
            check_ranges(batch.ranges, known.statistics, len(known.ordinals))
        return known, self.series(connection, run_id, [rows.name for rows in batch.series])

    def open_catalogue(self, connection: Connection, run_id: int, opening: StreamHeader) -> KnownCatalogue:
        """Store a catalogue and give its new tensors their ordinals. Raises `WireError`."""
        digest = wire.catalogue_digest(opening.catalogue)
        known = self.catalogue(connection, run_id, digest)
        if known is None:
            self._check_statistics(connection, run_id, opening.catalogue.statistics)
            ordinals = self._ordinals(connection, run_id, opening.catalogue.tensors)
            body = zstandard.compress(msgspec.msgpack.encode(opening.catalogue))
            values = {"run_id": run_id, "digest": digest, "body": body, "ordinals": ordinals.astype("<i8").tobytes()}
            connection.execute(insert(tables.catalogues).values(values))
            known = self._catalogues[run_id, digest] = KnownCatalogue(opening.catalogue.statistics, ordinals)
            self._counted(run_id, known)
            self._statistics.pop(run_id, None)
        return known

    def _check_statistics(self, connection: Connection, run_id: int, given: Sequence[Statistic]) -> None:
        """Of names that this server does not know, the run's first catalogue that has one says what it means."""
        if unknown := [each for each in given if each.name not in KNOWN]:
            check_statistics(unknown, {each.name: each for each in self.statistics(connection, run_id)})

    def _counted(self, run_id: int, known: KnownCatalogue) -> None:
        size = self.size_of(len(known.ordinals), len(known.statistics))
        self._bytes[run_id] = self._bytes.get(run_id, 0) + size

    @staticmethod
    def size_of(tensors: int, statistics: int) -> int:
        """About how many bytes are held while a catalogue of so many is remembered."""
        return TENSOR_BYTES * tensors + STATISTIC_BYTES * statistics

    def statistics(self, connection: Connection, run_id: int) -> tuple[Statistic, ...]:
        """Every statistic that any catalogue of the run has."""
        if run_id not in self._statistics:
            self._statistics[run_id] = {each.name: each for each in load_statistics(connection, run_id)}
        return tuple(self._statistics[run_id].values())

    def columns(
        self, connection: Connection, run_id: int
    ) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, str]]]:
        """Identities and merge rules of every column, by part."""
        statistics = self.statistics(connection, run_id)
        fill = {part: pyramid.identities(part, statistics) for part in PARTS}
        return fill, {part: pyramid.merge_rules(part, statistics) for part in PARTS}

    def tensors(self, connection: Connection, run_id: int) -> TensorArrays:
        """All tensors of the run."""
        if run_id not in self._tensors:
            self._tensors[run_id] = load_arrays(connection, run_id)
        return self._tensors[run_id]

    def series(self, connection: Connection, run_id: int, names: Sequence[str]) -> dict[str, int]:
        """Ordinals of the run's series, new names added; beyond MAX_SERIES a new name raises `WireError`."""
        if run_id not in self._series:
            self._series[run_id] = load_series(connection, run_id)
        known = self._series[run_id]
        new = [name for name in dict.fromkeys(names) if name not in known]
        if new and connection.dialect.name != "sqlite":  # another server may give numbers at this moment
            connection.execute(select(func.pg_advisory_xact_lock(run_id)))
            known = self._series[run_id] = load_series(connection, run_id)
            new = [name for name in new if name not in known]
        if len(known) + len(new) > MAX_SERIES:
            raise wire.WireError("too_large", f"a run holds at most {MAX_SERIES} logged names")
        rows = [
            {"run_id": run_id, "ordinal": len(known) + i, "identity": identity(name), "name": name}
            for i, name in enumerate(new)
        ]
        if rows:
            connection.execute(insert(tables.series), rows)
            known.update({row["name"]: row["ordinal"] for row in rows})  # type: ignore[misc]
        return known

    def _ordinals(self, connection: Connection, run_id: int, entries: Sequence[TensorEntry]) -> Array:
        known = self._known_ordinals(connection, run_id)
        keys = [tensor_identity(entry) for entry in entries]
        new = {key: entry for key, entry in zip(keys, entries, strict=True) if key not in known}
        if len(known) + len(new) > MAX_TENSORS:
            raise wire.WireError("too_large", f"a run holds at most {MAX_TENSORS} tensors")
        if new:
            rows = [_tensor_row(run_id, len(known) + i, key, entry) for i, (key, entry) in enumerate(new.items())]
            connection.execute(insert(tables.tensors), rows)
            known.update({key: row["ordinal"] for key, row in zip(new, rows, strict=True)})
            self._tensors.pop(run_id, None)
        return np.array([known[key] for key in keys], np.int64)

    def _known_ordinals(self, connection: Connection, run_id: int) -> dict[str, int]:
        if run_id not in self._tensor_ordinals:
            query = select(tables.tensors.c.identity, tables.tensors.c.ordinal).where(tables.tensors.c.run_id == run_id)
            self._tensor_ordinals[run_id] = {row.identity: row.ordinal for row in connection.execute(query)}
        return self._tensor_ordinals[run_id]


def open_partitions(connection: Connection, run_id: int) -> None:
    """PostgreSQL keeps a run's tiles, samples and batches in partitions of its own: to delete a run is to drop them.

    Made apart and attached, since CREATE ... PARTITION OF would lock out everyone who reads any run.
    """
    if connection.dialect.name != "postgresql":
        return
    for table in tables.PARTITIONED:
        own = f"{table.name}_run_{run_id:d}"
        connection.exec_driver_sql(f"CREATE TABLE {own} (LIKE {table.name} INCLUDING ALL)")
        connection.exec_driver_sql(f"ALTER TABLE {own} ADD CHECK (run_id = {run_id:d})")  # spares ATTACH its scan
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ATTACH PARTITION {own} FOR VALUES IN ({run_id:d})")


def _tensor_row(run_id: int, ordinal: int, key: str, entry: TensorEntry) -> dict[str, Any]:
    return {
        "run_id": run_id, "ordinal": ordinal, "identity": key, "fqn": entry.fqn, "kind": entry.kind,
        "tensor_index": entry.index, "dtype": entry.dtype, "shape": msgspec.json.encode(entry.shape).decode(),
        "call_index": entry.call_index, "module": entry.module,
    }  # fmt: skip
