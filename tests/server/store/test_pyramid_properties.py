"""What the pyramid promises for any load: a spike is in every level and figure, the order of arrival is in none."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rangewatch import wire
from rangewatch.wire.records import Batch, Event, StreamHeader
from rangewatch_server.core.settings import Settings
from rangewatch_server.http.app import create_app
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.headroom import State
from rangewatch_server.numerics.pyramid import AMAX_STEP, NO_STEP, NONFINITE_STEP, RANGES, SERIES_PART, SUMMARY
from rangewatch_server.query.reader import RunReader
from tests.server.records import batch, catalogue, opening

TENSORS = 3  # an output, a grad_output and a grad
KNOWN = catalogue(TENSORS)
LEVELS = range(6)
# How many times as many examples: only a soak makes a failing one smaller, which takes minutes.
SOAK = pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(7_200)])
TIMES = pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow), SOAK])
# Statistic -> (what healthy cells hold, what the spike holds, which column names its step).
SPIKES = {
    "amax": (1.0, 65504.0, AMAX_STEP),
    "nan_count": (0.0, 1.0, NONFINITE_STEP),
    "inf_count": (0.0, 2.0, NONFINITE_STEP),
    "amin": (0.5, 2.0**-24, None),
    "zero_count": (0.0, 5.0, None),
    "subnormal_count": (0.0, 3.0, None),
}
STATES = {"amax": State.SATURATED, "nan_count": State.NAN, "inf_count": State.INF}


class Served:
    """The real application over a real database in this process; every example is a run of its own."""

    def __init__(self, client: TestClient, database_url: str) -> None:
        self.client = client
        self.writer = client.app.state.writer
        self.queries = client.app.state.queries
        self.is_sqlite = database_url.startswith("sqlite")
        self.numbers = itertools.count(1)

    def store(self, messages: Sequence[StreamHeader | Batch], group: int) -> int:
        """Send so many at once, which is about what the writer takes into one transaction; the run's id."""
        sent = [(wire.decode(body), body) for body in map(wire.encode, messages)]
        for first in range(0, len(sent), group):
            for future in [self.writer.submit(*each) for each in sent[first : first + group]]:
                future.result(30)
        with self.queries.read() as reader:
            return max(reader.run_ids())

    def figure(self, run: int, name: str, **query: object) -> dict[str, Any]:
        answer = self.client.get(f"/api/v1/runs/{run}/figures/{name}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def many(self, examples: int, times: int) -> settings:
        """So many on SQLite, and half as many on PostgreSQL."""
        phases = set(Phase) - {Phase.explain} - (set() if times == 200 else {Phase.shrink})
        most = (examples if self.is_sqlite else examples // 2) * times
        return settings(max_examples=most, suppress_health_check=list(HealthCheck), phases=phases)


@pytest.fixture
def served(database_url: str) -> Iterator[Served]:
    with TestClient(create_app(Settings(db=database_url)), base_url="http://127.0.0.1") as client:
        yield Served(client, database_url)


class Spike(msgspec.Struct, frozen=True):
    """One cell that differs, in steps [0, steps) of `ranks` ranks; looked at from [start, stop)."""

    steps: int
    ranks: int
    size: int
    rank: int
    tensor: int
    step: int
    what: str
    start: int
    stop: int
    columns: int
    group: int

    def messages(self, run: str) -> Iterator[StreamHeader | Batch]:
        for rank in range(self.ranks):
            yield opening(KNOWN, run, rank, world_size=self.ranks)
            for sequence, low in enumerate(range(0, self.steps, self.size)):
                span = range(low, min(low + self.size, self.steps))
                yield batch(KNOWN, sequence, span, self._columns(rank, span), run=run, rank=rank)

    def _columns(self, rank: int, span: range) -> dict[str, Any]:
        usual, hot, _ = SPIKES[self.what]
        values = np.full((TENSORS, len(span)), usual)
        if rank == self.rank and self.step in span:
            values[self.tensor, self.step - span.start] = hot
        return {"full_numel": 32.0, "amin": 0.5, self.what: values}


@st.composite
def spikes(draw: Callable[..., Any]) -> Spike:
    """Lengths near where tiles of some level end, batches of any size, and a range that holds the spike."""
    steps = draw(st.integers(1, 300) | st.integers(500, 530) | st.integers(600, 2_500) | st.just(4_097))
    step = draw(st.integers(0, steps - 1))
    ranks = draw(st.integers(1, 3))
    return Spike(
        steps, ranks, draw(st.integers(max(1, steps // 12), 700)), draw(st.integers(0, ranks - 1)),
        draw(st.integers(0, TENSORS - 1)), step, draw(st.sampled_from(sorted(SPIKES))),
        draw(st.integers(0, step)), draw(st.integers(step + 1, steps)), draw(st.integers(1, 400)),
        draw(st.sampled_from([1, 100])),
    )  # fmt: skip


@TIMES
def test_a_spike_anywhere_is_in_every_level_and_figure(served: Served, times: int) -> None:
    @served.many(6, times)
    @given(spikes())
    def holds(spike: Spike) -> None:
        run_id = served.store(list(spike.messages(f"spike {next(served.numbers)}")), spike.group)
        with served.queries.read() as reader:
            run = reader.run(run_id)
            for level, (start, stop) in itertools.product(LEVELS, ((0, spike.steps), (spike.start, spike.stop))):
                in_level(run, spike, level, start, stop)
        in_figures(served, run_id, spike)

    holds()


def in_level(run: RunReader, spike: Spike, level: int, start: int, stop: int) -> None:
    """In the cell that holds its step it is, and nowhere else, whoever is asked."""
    column = spike.step // 8**level - start // 8**level
    everyone = list(range(spike.ranks))
    for ranks in [everyone, *([rank] for rank in everyone)]:
        found = run.slice(RANGES, ranks, level, start, stop, ["call_count", spike.what, AMAX_STEP, NONFINITE_STEP])
        usual, hot, place = SPIKES[spike.what]
        expected = [[spike.tensor, column]] if spike.rank in ranks else []
        assert np.argwhere(found.columns[spike.what] != usual).tolist() == expected, (ranks, level)
        assert found.columns["call_count"].sum() == len(ranks) * TENSORS * (stop - start)
        if expected:
            assert found.columns[spike.what][spike.tensor, column] == hot
            assert place is None or found.columns[place][spike.tensor, column] == spike.step
        assert (found.columns[NONFINITE_STEP] < NO_STEP).any() == (bool(expected) and place == NONFINITE_STEP)


def in_figures(served: Served, run: int, spike: Spike) -> None:
    """Each figure that shows the statistic shows the spike, in the column of its step, and only there."""
    asked = {"start": spike.start, "stop": spike.stop, "columns": spike.columns}
    if spike.what in STATES:
        for name, row in (("layers", spike.tensor), ("timeline", spike.rank)):
            meta = served.figure(run, name, **asked)["meta"]
            hot = np.argwhere(array(meta["states"]) == STATES[spike.what]).tolist()
            assert hot == [[row, column(meta, spike.step)]], name
        answer = served.client.get(f"/api/v1/runs/{run}/locate", params={"start": spike.start, "stop": spike.stop})
        assert [answer.json()[key] for key in ("step", "rank", "tensor")] == [spike.step, spike.rank, spike.tensor]
    in_lines(served.figure(run, "tensor", **asked, tensor=spike.tensor), spike)
    in_lines(served.figure(run, "tensor", **asked, tensor=spike.tensor, rank=spike.rank), spike)


def in_lines(figure: dict[str, Any], spike: Spike) -> None:
    lines = {each["name"]: each for each in figure["figure"]["data"]}
    x, name = column(figure["meta"], spike.step), {"amax": "amax", "amin": "amin"}.get(spike.what, "non-finite")
    if spike.what in ("zero_count", "subnormal_count"):
        assert len(array(lines[name]["x"])) == 0
        return
    y = array(lines[name]["y"])
    if name == "non-finite":
        assert len(y) == 1
    else:
        assert np.flatnonzero(y == SPIKES[name][1]).tolist() == [x]


def column(meta: dict[str, Any], step: int) -> int:
    return step // meta["steps_per_column"] - meta["start"] // meta["steps_per_column"]


def array(encoded: dict[str, Any]) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(encoded["bdata"]), np.dtype(f"<{encoded['dtype']}"))
    return values.reshape([int(n) for n in encoded["shape"].split(",")]) if "shape" in encoded else values


class History(msgspec.Struct, frozen=True):
    """What several ranks send, some of them again after a restart: openings and batches as they were made."""

    streams: list[tuple[StreamHeader, list[Batch]]]
    shuffled: list[Batch]
    """The same batches in another order, some of them more than once."""
    group: int
    """How many of them are sent at once."""

    def __repr__(self) -> str:
        """Which batches, in which order; all their values would be a megabyte."""
        said = [
            f"rank {b.rank}{b.incarnation} {b.sequence} from {b.ranges.steps[0]}" for b in self.shuffled if b.ranges
        ]
        return f"{said}, {self.group} at once"

    @property
    def in_order(self) -> list[StreamHeader | Batch]:
        return [message for first, batches in self.streams for message in (first, *batches)]

    @property
    def as_it_came(self) -> list[StreamHeader | Batch]:
        return [*(first for first, _ in self.streams), *self.shuffled]

    def of(self, run: str, messages: Sequence[StreamHeader | Batch]) -> list[StreamHeader | Batch]:
        """The messages under the name of another run."""
        return [
            msgspec.structs.replace(each, info=msgspec.structs.replace(each.info, run=run))
            if isinstance(each, StreamHeader)
            else msgspec.structs.replace(each, run=run)
            for each in messages
        ]


@st.composite
def histories(draw: Callable[..., Any]) -> History:
    """Up to 3 ranks of up to 2 incarnations, whose sums are floats that do not add up the same in any order."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    streams: list[tuple[StreamHeader, list[Batch]]] = []
    for rank in range(draw(st.integers(1, 3))):
        first = 0
        for incarnation in ("a", "b")[: draw(st.integers(1, 2))]:
            spans = draw(st.lists(st.integers(1, 99) | st.sampled_from([64, 300]), min_size=1, max_size=5))
            if draw(st.booleans()):  # long enough for a tile of level 1, into which the last batch may come late
                spans = [600, *spans, 20]
            started = opening(KNOWN, rank=rank, incarnation=incarnation, world_size=3)
            streams.append((started, list(sent(draw, random, rank, incarnation, first, spans))))
            first = draw(st.integers(0, sum(spans)))  # a restart from a checkpoint goes back
    batches = [each for _, sent_ones in streams for each in sent_ones]
    repeated = draw(st.lists(st.sampled_from(batches), max_size=5))
    return History(streams, draw(st.permutations([*batches, *repeated])), draw(st.sampled_from([1, 4, 100])))


def sent(
    draw: Callable[..., Any], random: np.random.Generator, rank: int, incarnation: str, first: int, spans: list[int]
) -> Iterator[Batch]:
    """Batches of one stream: spans of steps, now and then with a hole before one or going back into the last."""
    for sequence, span in enumerate(spans):
        moves = [0, 0, 90, -20] if span != 20 else [0, -first, -200]
        low = max(0, first + draw(st.sampled_from(moves)))
        shape = (TENSORS, span)
        seen = random.integers(0, 3, shape)
        columns = {
            "amax": np.exp2(random.normal(0, 4, shape).clip(-14, 15)).astype(np.float32),
            "nan_count": (random.random(shape) < 0.01) * 2.0, "full_numel": 32.0,
            "sum_sq": random.random(shape) * 1e3, "numel": 32.0,
        }  # fmt: skip
        columns = {name: np.where(seen > 0, values, 0.0) for name, values in columns.items()}  # as agents send
        columns |= {"call_count": seen, "amin": np.where(seen > 0, random.random(shape) + 1e-3, np.inf)}
        said = (Event("finished", 1, low + span),) if sequence == len(spans) - 1 and draw(st.booleans()) else ()
        series = {"loss": random.normal(size=span)}
        yield batch(
            KNOWN, sequence, range(low, low + span), columns, rank=rank, incarnation=incarnation, series=series,
            events=said,
        )  # fmt: skip
        first = low + span


@TIMES
def test_any_order_and_repetition_gives_the_same_bytes(served: Served, times: int) -> None:
    @served.many(2, times)
    @given(histories())
    def holds(history: History) -> None:
        number = next(served.numbers)
        runs = [
            served.store(history.of(f"{kind} {number}", messages), group)
            for kind, messages, group in (
                ("in order", history.in_order, 1),
                ("shuffled", history.as_it_came, history.group),
            )
        ]
        with served.queries.read() as reader:
            one, other = (reader.run(each) for each in runs)
            assert (one.first_step, one.last_step) == (other.first_step, other.last_step)
            for where, (left, right) in zip(places(one), zip(slices(one), slices(other), strict=True), strict=True):
                are_the_same(left, right, where)
            for part, rank, level in itertools.product(WANTED, sorted(other.ranks), LEVELS[1:]):
                is_made_of_the_level_below(other, part, rank, level)

    holds()


def is_made_of_the_level_below(run: RunReader, part: str, rank: int, level: int) -> None:
    """Late rows have reached every level. A column that a restart cuts is a sum of two sums: it rounds otherwise."""
    names, stop = run.names(), run.last_step + 1
    found, below = (run.slice(part, [rank], each, 0, stop, WANTED[part]) for each in (level, level - 1))
    made = pyramid.coarser(below, names.rules[part], names.fill[part])
    for name, values in found.columns.items():
        most = 1e-12 if names.rules[part][name] == "sum" else 0.0
        assert np.allclose(values, made.columns[name], most, 0.0, equal_nan=True), (part, rank, level, name)


def places(run: RunReader) -> list[tuple[str, list[int], int, int, int]]:
    """Every part of one rank and of all, at each level, of all steps and of some that fall on no column."""
    stop = run.last_step + 1
    everyone = sorted(run.ranks)
    ranges = {(0, stop), (stop // 3 + 1, stop - stop // 5)}
    asked = itertools.product(WANTED, [everyone, *([rank] for rank in everyone)], LEVELS, sorted(ranges))
    return [(part, ranks, level, start, end) for part, ranks, level, (start, end) in asked if start < end]


def slices(run: RunReader) -> Iterator[dict[str, np.ndarray]]:
    """As numbers of 8 bytes: in how few a column is kept may differ."""
    for part, ranks, level, start, stop in places(run):
        found: dict[str, np.ndarray] = {}
        # Of several ranks, what needs their order is read from each of them, and the rest from the merged ranks.
        for wanted in (WANTED[part], [name for name in WANTED[part] if name not in ("sum", "sum_sq", "last")]):
            block = run.slice(part, ranks, level, start, stop, wanted)
            found |= {f"{name} of {len(wanted)}": each.astype(np.float64) for name, each in block.columns.items()}
            found[f"rows of {len(wanted)}"] = block.rows
        yield found


def are_the_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray], where: tuple[Any, ...]) -> None:
    """Byte for byte."""
    assert left.keys() == right.keys()
    for name, values in left.items():
        assert values.tobytes() == right[name].tobytes(), (where, name)


WANTED = {
    RANGES: ["call_count", "amax", "nan_count", "amin", "full_numel", "sum_sq", AMAX_STEP, NONFINITE_STEP],
    SERIES_PART: ["count", "sum", "min", "max", "last", "nonfinite_count"],
    SUMMARY: ["observed", "bits", "nan_count", "inf_count"],
}
