"""Replicas that should be alike and are not: since which step, which parameter, whose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rangewatch import statistics
from rangewatch.wire.events import SampledWeights, event
from rangewatch_server.rules import Finding
from rangewatch_server.rules.replicas.mismatch import RULE
from tests.server.rules.conftest import Recording, tensor

NAMES = ("a.weight", "a.bias", "b.weight", "b.bias")
GRADS = [tensor(name, "grad", place) for place, name in enumerate(NAMES)]
REDUCED = [tensor(name, "reduced_grad", 10 + place) for place, name in enumerate(NAMES)]


def checksums(steps: int, every: int = 1, rows: int = len(GRADS), first: int = 0) -> np.ndarray:
    """(rows, steps): another one at each step, row `i` at each `every`-th step from `i` on; 0 where there is none."""
    at = first + np.arange(steps)
    found = 1.0 + at * 7919.0 + 2.0**52 * 0.5 + np.arange(rows)[:, np.newaxis]
    return np.where((at - np.arange(rows)[:, np.newaxis]) % every == 0, found, 0.0)


def write(recording: Recording, ranks: Sequence[np.ndarray], tensors: Sequence[Any] = GRADS, **more: Any) -> None:
    """Each rank's checksums, (tensors, steps)."""
    for rank, values in enumerate(ranks):
        write_rank(recording, rank, values, len(ranks), tensors, **more)


def write_rank(
    recording: Recording, rank: int, values: np.ndarray, world_size: int, tensors: Sequence[Any] = GRADS, **more: Any
) -> None:
    columns = {"checksum_max": values, "checksum_min": np.where(values > 0, values, np.inf)}
    recording.write(tensors, values.shape[1], columns, rank=rank, world_size=world_size, **more)


def odd(values: np.ndarray, row: int, step: int) -> np.ndarray:
    """The same, but for one row from `step` on."""
    changed = values.copy()
    changed[row, step:] += np.where(changed[row, step:] > 0, 1.0, 0.0)
    return changed


def found(recording: Recording, **more: Any) -> tuple[Finding, ...]:
    diagnosis = recording.diagnose(RULE, **more)
    assert not diagnosis.failed
    return diagnosis.findings


def place(finding: Finding) -> tuple[Any, ...]:
    return finding.rank, finding.step, finding.tensor, finding.kind


@pytest.mark.parametrize("step", [0, 1, 63, 64, 500, 699])
def test_the_odd_rank_its_parameter_and_the_first_step(recording: Recording, step: int) -> None:
    usual = checksums(700)
    write(recording, [usual, usual, odd(usual, 2, step), usual])
    (finding,) = found(recording)
    assert place(finding) == (2, step, "b.weight", "grad")
    what = "the parameter b.weight differs from what the other 3 ranks hold."
    assert finding.summary == f"Step {step}, rank 2: {what}"
    assert finding.facts["last_equal_step"] == (step - 1 if step else None)
    assert "It is the only one of 4 parameters that differs." in finding.evidence
    assert ("rank 2" in finding.remedy[0].text) == (step > 0)


def test_before_it_began_there_is_nothing(recording: Recording) -> None:
    usual = checksums(200)
    write(recording, [usual, odd(usual, 1, 150), usual])
    assert found(recording, stop=150) == ()
    assert place(found(recording, stop=151)[0]) == (1, 150, "a.bias", "grad")


@pytest.mark.parametrize("every", [100, 400])
def test_between_two_readings_the_interval_is_told(recording: Recording, every: int) -> None:
    usual = checksums(1000, every)
    write(recording, [usual, odd(usual, 3, 450), usual])
    (finding,) = found(recording)
    step, alike = (503, 403) if every == 100 else (803, 403)
    assert place(finding) == (1, step, "b.bias", "grad") and finding.facts["last_equal_step"] == alike
    assert f"steps {alike} to {step}" in finding.evidence[1]


def sampled(
    recording: Recording, parts: int, name: str = "sampled_update", of_other: Any = None, of: str = "b.bias"
) -> None:
    """Compared at each fiftieth step from 3 on; from step `parts` on what is recorded at each step differs, too."""
    known = [event(SampledWeights((of,), True), 1, 0)]
    usual, same = checksums(100, 50), np.linspace(1.0, 2.0, 100)
    other = np.where(np.arange(100) >= parts, same + 1e-6, same) if of_other is None else of_other
    write_rank(recording, 0, usual, 2, series={name: same}, events=known)
    write_rank(recording, 1, odd(usual, 3, 40), 2, series={name: other}, events=known)


@pytest.mark.parametrize("name", ["sampled_update", "sampled_gradient", "weights_written"])
def test_between_two_readings_what_is_recorded_at_each_step_says_when(recording: Recording, name: str) -> None:
    sampled(recording, 40, name)
    (finding,) = found(recording)
    assert place(finding) == (None, 40, "b.bias", "grad")
    assert (finding.facts["last_equal_step"], finding.facts["compared_step"]) == (3, 53)
    assert "differed between ranks at step 40" in finding.evidence[0] and "steps 3 to 53" in finding.evidence[0]


@pytest.mark.parametrize(
    ("parts", "of_other", "of"),
    [
        (100, None, "b.bias"), (3, None, "b.bias"), (60, None, "b.bias"), (0, np.full(100, np.nan), "b.bias"),
        (40, None, "a.bias"),
    ],
    ids=["never", "always", "later", "of one rank alone", "of another parameter"],
)  # fmt: skip
def test_between_two_readings_nothing_says_when(recording: Recording, parts: int, of_other: Any, of: str) -> None:
    sampled(recording, parts, of_other=of_other, of=of)
    (finding,) = found(recording)
    assert place(finding) == (None, 53, "b.bias", "grad") and "differed between" not in finding.evidence[0]


def test_of_two_ranks_none_is_accused(recording: Recording) -> None:
    usual = checksums(100)
    write(recording, [usual, odd(usual, 0, 40)])
    (finding,) = found(recording)
    assert place(finding) == (None, 40, "a.weight", "grad")
    assert finding.summary == "Step 40: ranks 0 and 1 differ in the parameter a.weight."
    assert "Go back to a checkpoint of step 39" in finding.remedy[0].text


def test_two_bad_ranks_are_two_findings(recording: Recording) -> None:
    usual = checksums(200)
    write(recording, [usual, odd(usual, 0, 40), usual, odd(usual, 1, 90), usual])
    assert [place(each) for each in found(recording)] == [(1, 40, "a.weight", "grad"), (3, 90, "a.bias", "grad")]


def test_never_alike(recording: Recording) -> None:
    write(recording, [checksums(100) + 10_000 * rank for rank in range(4)])
    (finding,) = found(recording)
    assert finding.rank is None and finding.step == 0
    assert "or before: it is the first at which they were compared" in finding.evidence[0]
    assert "broadcast" in finding.remedy[0].code


def test_a_reduction_that_gave_a_rank_something_else(recording: Recording) -> None:
    tensors, usual = [*GRADS, *REDUCED], checksums(100, rows=8)
    write(recording, [usual, odd(odd(usual, 4, 50), 0, 51), usual], tensors)
    (finding,) = found(recording)
    assert place(finding) == (1, 50, "a.weight", "reduced_grad")


def test_gradients_that_were_alike_clear_the_reduction(recording: Recording) -> None:
    tensors, usual = [*GRADS, *REDUCED], checksums(100, rows=8)
    write(recording, [usual, odd(usual, 0, 51), usual], tensors)
    (finding,) = found(recording)
    assert any("it did not come by the network" in each for each in finding.evidence)


def test_many_ranks(recording: Recording) -> None:
    usual = checksums(70)
    write(recording, [odd(usual, 0, 33) if rank == 17 else usual for rank in range(40)])
    (finding,) = found(recording)
    assert place(finding) == (17, 33, "a.weight", "grad")
    assert "Ranks 0-16 and 18-39 hold the same bits." in finding.evidence


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("steps", [0, 1, 700])
def test_healthy_replicas(recording: Recording, steps: int, every: int) -> None:
    write(recording, [checksums(steps, every)] * 3)
    assert found(recording) == ()


def test_nothing_was_read(recording: Recording) -> None:
    write(recording, [np.zeros((4, 100))] * 3)
    assert found(recording) == ()


def test_agents_that_know_no_checksums(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "ALL", tuple(each for each in statistics.ALL if "checksum" not in each.name))
    recording.write(GRADS, 100)
    recording.write(GRADS, 100, rank=1)
    assert found(recording) == ()


def test_one_rank_alone_has_read(recording: Recording) -> None:
    write(recording, [checksums(100), np.zeros((4, 100)), np.zeros((4, 100))])
    assert found(recording) == ()


def test_rows_of_several_readings_say_nothing(recording: Recording) -> None:
    """As a spool that was full, on one rank, merges steps."""
    write(recording, [checksums(64)] * 2)
    several = {"checksum_max": checksums(64) + 7919, "checksum_min": checksums(64)}
    recording.write(GRADS, 64, several, rank=2, world_size=3)
    assert found(recording) == ()


def test_a_rank_that_alone_has_begun_anew(recording: Recording) -> None:
    """Its steps are of another training than those of the same numbers that the others told."""
    usual = checksums(100)
    write(recording, [usual] * 3)
    write_rank(recording, 1, checksums(20, first=90) + 3, 3, first=90, incarnation="b")
    assert found(recording) == ()


def test_all_ranks_have_begun_anew(recording: Recording) -> None:
    """What was odd before is not so any more; what is odd since is since the restart."""
    usual, later = checksums(100), checksums(50, first=60)
    write(recording, [usual, odd(usual, 0, 50), usual])
    write(recording, [later] * 3, first=60, incarnation="b")
    assert found(recording) == ()
    write(recording, [later, later, odd(later, 2, 0)], first=60, incarnation="c")
    (finding,) = found(recording)
    assert place(finding) == (2, 60, "b.weight", "grad")
    assert "after the restart at step 60" in finding.evidence[0]


def test_the_same_again(recording: Recording) -> None:
    usual = checksums(300)
    write(recording, [usual, odd(usual, 2, 77), usual])
    assert found(recording) == found(recording)
