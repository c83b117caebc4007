"""Runs made by hand, so that every value is known: in memory, and where a rule asks tables in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch import statistics, wire
from rangewatch.statistics import experts, in_use, scales
from rangewatch.wire.records import Batch, Catalogue, Event, RangeRows, RankInfo, SeriesRows, StreamHeader, TensorEntry
from rangewatch_server import rules as shelf
from rangewatch_server.query.reader import RunReader
from rangewatch_server.rules import Rule
from rangewatch_server.rules.diagnosis import Diagnosis, diagnose
from tests.server.opened_store import Store
from tests.server.rules.memory import Memory

STEPS_A_BATCH = 64
EVERY = pytest.mark.parametrize(
    "every", [pytest.param(5, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
"""Of the steps that a rule is asked at: one in so many."""

FROM_TABLES = frozenset({"gpu_health", "hang", "out_of_memory", "rank_died", "straggler"})
"""Rules that read what no `Memory` has: samples, and how processes ended."""
USUAL = {"call_count": 1.0, "numel": 32.0, "amax": 1.0, "nan_count": 0.0, "inf_count": 0.0}


def tensor(
    fqn: str, kind: str = "output", call_index: int = 0, dtype: str = "float16", module: str = "Linear"
) -> TensorEntry:
    return TensorEntry(fqn, kind, 0, dtype, (4, 8), call_index, module)


class Recording:
    """One run in memory: `rules` are those that need no more."""

    rules: Sequence[Rule] = tuple(each for each in shelf.ALL if each.name not in FROM_TABLES)
    steps_a_batch: int | None = None  # all in one

    def __init__(self) -> None:
        self.memory = Memory()

    def send(self, *messages: StreamHeader | Batch) -> None:
        """Take what a rank tells."""
        for message in messages:
            self.memory.take(message)

    @contextmanager
    def run(self) -> Iterator[RunReader]:
        """To read."""
        yield self.memory.run()

    def write(
        self,
        tensors: Sequence[TensorEntry],
        steps: int,
        columns: Mapping[str, Any] | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        series: Mapping[str, Any] | None = None,
        events: Sequence[Event] = (),
        loss_scaled: bool = False,
        first: int = 0,
        incarnation: str = "a",
        versions: Mapping[str, str] | None = None,
        sequence: int = 0,
    ) -> None:
        """What one rank tells of its steps [first, first + steps).

        `columns`: statistic -> what broadcasts to (tensors, steps); the usual ones are one call of 32 elements with
        amax 1. `series`: name -> what broadcasts to (steps,). `sequence`: of the first batch.
        """
        sums = tuple(each for each in (*in_use.ALL, *scales.ALL, *experts.ALL) if each.name in (columns or {}))
        known = Catalogue(statistics.ALL + sums, tuple(tensors))
        info = RankInfo(
            "run",
            rank,
            world_size,
            rank,
            f"host{rank // 2}",
            incarnation,
            1_000 + rank,
            loss_scaled=loss_scaled,
            versions=dict(versions or {}),
        )
        messages: list[StreamHeader | Batch] = [StreamHeader(info, known)]
        at = np.arange(first, first + steps)
        shape = (len(known.tensors), steps)
        given = USUAL | dict(columns or {})
        cells = {name: np.broadcast_to(np.asarray(each, float), shape) for name, each in given.items()}
        lines = {name: np.broadcast_to(np.asarray(each, float), (steps,)) for name, each in (series or {}).items()}
        digest = wire.catalogue_digest(known)
        width = self.steps_a_batch or max(steps, 1)
        for number, low in enumerate(range(0, max(steps, 1), width), sequence):
            part = slice(low, low + width)
            inside = [each for each in events if at[part][0] <= each.step <= at[part][-1]] if steps else list(events)
            ranges = RangeRows(at[part], np.arange(shape[0]), {name: each[:, part] for name, each in cells.items()})
            rows = tuple(SeriesRows(name, at[part], each[part]) for name, each in lines.items())
            messages.append(
                Batch("run", rank, incarnation, number, digest, ranges if steps else None, rows, tuple(inside))
            )
        self.send(*messages)

    def diagnose(self, *rules: Rule, stop: int | None = None, thresholds: Any = None) -> Diagnosis:
        """The diagnosis by these rules, or by all that it has what they need for."""
        assert set(rules) <= set(self.rules), "of a run in a store"
        with self.run() as run:
            found = diagnose(run, stop, thresholds, rules or self.rules)
        assert not found.failed, "a rule that raises finds nothing, and would pass for quiet"
        msgspec.json.encode(found.findings)  # as they are answered: no number of numpy's may be in them
        return found


class Stored(Recording):
    """One run in a store of its own, written by the real writer and read back."""

    rules = shelf.ALL
    steps_a_batch = STEPS_A_BATCH

    def __init__(self, store: Store) -> None:
        self.store = store

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[Stored]:
        """In a new database in the folder."""
        store = Store(f"sqlite:///{folder / 'rules.db'}")
        try:
            yield cls(store)
        finally:
            store.close()

    def send(self, *messages: StreamHeader | Batch) -> None:
        self.store.send_all(messages)

    @contextmanager
    def run(self) -> Iterator[RunReader]:
        with self.store.queries.read() as reader:
            (run_id,) = reader.run_ids()
            run = reader.run(run_id)
            assert run is not None
            yield run


@pytest.fixture
def recording() -> Recording:
    return Recording()


@pytest.fixture
def stored(sqlite_url: str, open_store: Callable[[str], Store]) -> Stored:
    return Stored(open_store(sqlite_url))


@pytest.fixture(autouse=True)
def noise_is_the_same(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever tests of its module ran before."""
    if hasattr(request.module, "NOISE"):
        monkeypatch.setattr(request.module, "NOISE", np.random.default_rng(3))
