"""A run in memory is read as the same run is from the store: every part and level of it, and what rules say of it."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rangewatch.wire.records import KINDS, Event
from rangewatch_server.numerics.pyramid import PARTS, RANGES, SUMMARY
from rangewatch_server.query.reader import RunReader
from rangewatch_server.rules.diagnosis import Diagnosis
from tests.faults import examples
from tests.server.rules import remedy_cases
from tests.server.rules.conftest import Recording, Stored, tensor
from tests.server.rules.loss_scales import reported

ENTRIES = [
    tensor("a", call_index=0), tensor("b", call_index=1, module="ReLU"), tensor("b", "grad_output", 2),
    tensor("a.weight", "grad", 3, "float32"), tensor("a.weight", "update", 4, "float32"),
]  # fmt: skip
COUNTS = ("call_count", "numel", "nan_count", "inf_count", "full_numel", "zero_count", "checksum_max")
SERIES = ("loss", "loss_scale", "skipped_step")
LEVELS = range(4)


class Part(msgspec.Struct, frozen=True):
    """What one process of a rank tells at once. `seed`: of its values, which are sums of few powers of two."""

    rank: int
    incarnation: str
    first: int
    steps: int
    tensors: tuple[int, ...]
    series: tuple[str, ...]
    bad: int | None
    seed: int

    def write(self, recording: Recording, sequence: int, number: int) -> None:
        """Values of which every sum is exact: the order in which ranks are merged shows in no bit.

        `number`: of the part; its scaler tells it.
        """
        chance = np.random.default_rng(self.seed)
        shape = (len(self.tensors), self.steps)
        columns: dict[str, Any] = {
            "amax": chance.integers(0, 2**12, shape) / 8,
            "sum_sq": chance.integers(0, 64, shape),
        }
        columns |= {name: chance.integers(0, 3, shape) for name in COUNTS}
        for name in ("nan_count", "inf_count"):
            columns[name] *= chance.random(shape) < 0.05
            if self.bad is not None:
                columns[name][:, self.bad :] += 1
        called = columns["call_count"] > 0
        columns = {name: values * called for name, values in columns.items()}  # as an agent: not called, not measured
        series = {name: chance.integers(1, 8, self.steps) / 4 for name in self.series}
        if "skipped_step" in series:
            series["skipped_step"] = chance.integers(0, 2, self.steps) * 1.0
        for values in series.values():
            values[chance.random(self.steps) < 0.1] = np.nan
        step = self.first + self.steps // 2
        recording.write(
            [ENTRIES[each] for each in self.tensors], self.steps, columns, rank=self.rank, world_size=3, series=series,
            first=self.first, incarnation=self.incarnation, sequence=sequence, loss_scaled=bool(self.seed % 2),
            events=[Event("nonfinite", 1, step, "", {"fqn": "a", "kind": "output"}), reported(20 + number, step=step)],
        )  # fmt: skip


@st.composite
def parts(draw: st.DrawFn, most_steps: int) -> list[Part]:
    """Ranks that lag, go on, and begin anew at a step that they had reached."""
    found: list[Part] = []
    for rank in range(draw(st.integers(1, 3))):
        begins = draw(st.integers(0, 70))
        for incarnation in "abc"[: draw(st.integers(1, 3))]:
            first = begins
            for _ in range(draw(st.integers(1, 2))):
                steps = draw(st.integers(1, most_steps))
                tensors = draw(st.lists(st.integers(0, len(ENTRIES) - 1), min_size=1, unique=True))
                series = draw(st.lists(st.sampled_from(SERIES), unique=True))
                bad = draw(st.none() | st.integers(0, steps))
                seed = draw(st.integers(0, 2**16))
                found.append(
                    Part(rank, incarnation, first, steps, tuple(sorted(tensors)), tuple(series), bad, seed)
                )  # fmt: skip
                first += steps
            begins = draw(st.integers(0, first))
    return found


def write(recording: Recording, found: list[Part]) -> None:
    sequences: dict[tuple[int, str], int] = {}
    for number, each in enumerate(found):
        key = each.rank, each.incarnation
        each.write(recording, sequences.get(key, 0), number)
        sequences[key] = sequences.get(key, 0) + -(-each.steps // (recording.steps_a_batch or each.steps))


def same_slices(run: RunReader, real: RunReader, chance: np.random.Generator) -> None:
    """Every part, level and set of ranks, over all steps and over some."""
    assert (run.first_step, run.last_step, sorted(run.ranks)) == (real.first_step, real.last_step, sorted(real.ranks))
    names, real_names = run.names(), real.names()
    assert (names.tensors.entries, names.series) == (real_names.tensors.entries, real_names.series)
    assert (names.fill, names.rules) == (real_names.fill, real_names.rules)
    stop = (run.last_step or 0) + 1
    ranks = sorted(run.ranks)
    some = sorted(chance.integers(0, stop + 1, 2).tolist())
    for part, level, span in itertools.product(PARTS, LEVELS, ([0, stop], some)):
        # The bins of exponents have one rule, and are more than all other columns.
        wanted = [name for name in names.fill[part] if not name.startswith("exponent")]
        known = np.arange({RANGES: len(names.tensors.entries), SUMMARY: len(KINDS)}.get(part, len(names.series)))
        rows = known[:1] if level % 2 else known
        for chosen in [ranks, ranks[:1], ranks[1:]]:
            one, other = (each.slice(part, chosen, level, *span, wanted, rows) for each in (run, real))
            assert (one.level, one.first, one.rows.tolist()) == (other.level, other.first, other.rows.tolist())
            for name in wanted:
                np.testing.assert_array_equal(one.columns[name], other.columns[name], f"{part} {level} {span} {name}")
    counts = ("nan_count", "inf_count", "bits", "observed")
    one, other = (each.by_rank(ranks, 1, 0, stop, counts) for each in (run, real))
    for name in counts:
        np.testing.assert_array_equal(one.columns[name], other.columns[name], name)


def same_events(run: RunReader, real: RunReader, stop: int) -> None:
    """The newest of all, those before a step, and those of each rank's last process."""
    for most, before in ((100, None), (2, None), (100, stop)):
        one, other = (each.events("scaler", most, before=before) for each in (run, real))
        assert [(each.step, each.data) for each in one] == [(each.step, each.data) for each in other]
    for rank in run.ranks:
        one, other = (each.events("scaler", 100, stream_id=each.ranks[rank].streams[-1].id) for each in (run, real))
        assert [(each.step, each.data) for each in one] == [(each.step, each.data) for each in other]


def said(recording: Recording, stop: int | None = None) -> Diagnosis:
    return recording.diagnose(*Recording.rules, stop=stop)


def is_read_alike(stored: Stored, found: list[Part]) -> None:
    recording = Recording()
    for each in (recording, stored):
        write(each, found)
    chance = np.random.default_rng(0)
    with recording.run() as run, stored.run() as real:
        same_slices(run, real, chance)
        last = run.last_step or 0
        same_events(run, real, last // 2)
    for stop in (None, last // 2):
        here, there = said(recording, stop), said(stored, stop)
        assert msgspec.to_builtins(here) == msgspec.to_builtins(there)


@pytest.mark.timeout(600)  # one that fails is looked at for minutes: the smallest such run is shown
@pytest.mark.parametrize(("examples", "most_steps"), [(4, 70), pytest.param(30, 700, marks=pytest.mark.slow)])
def test_a_run_in_memory_is_the_run_in_the_store(
    examples: int, most_steps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(max_examples=examples, phases=set(Phase) - {Phase.explain})  # that would trace every line
    @given(parts(most_steps))
    def alike(found: list[Part]) -> None:
        with Stored.opened(tmp_path_factory.mktemp("memory")) as stored:
            is_read_alike(stored, found)

    alike()


KNOWN = [(each.name, each.write) for each in examples.ALL if not each.is_stored]
KNOWN += [(each.__name__, each) for each in remedy_cases.ALL if each not in remedy_cases.STORED]


@pytest.mark.slow
@pytest.mark.parametrize("write", [write for _, write in KNOWN], ids=[name for name, _ in KNOWN])
def test_and_so_is_what_is_said_of_every_known_fault(write: Any, stored: Stored) -> None:
    recording = Recording()
    for each in (recording, stored):
        write(each)
    found = said(recording)
    assert found.findings and not found.failed
    assert msgspec.to_builtins(found) == msgspec.to_builtins(said(stored))
