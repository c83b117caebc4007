"""What outlives the process: read back as it was written, and whole wherever the process may have been killed."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import finalize

import numpy as np
import pytest

from rangewatch.core import limits
from rangewatch.crash.memory import anonymous_file, layout, stored_steps
from rangewatch.crash.memory.shared_state import SharedState
from rangewatch.crash.watcher.recovery import CrashRecord
from rangewatch.recording.rows.step_buffer import POSITIONS, Block, StepBuffer
from rangewatch.wire.records import Event, TensorEntry

pytestmark = pytest.mark.skipif(not anonymous_file.IS_SUPPORTED, reason="needs Linux")


def entry(number: int) -> TensorEntry:
    return TensorEntry(f"layer{number}", "output", 0, "float32", (2,), 1024 * number, "Linear")


class Rank:
    """A step buffer with names, as an agent has them."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        self.kept = SharedState(is_shared=True, listener=self)
        assert not self.kept.why_not
        self.buffer = StepBuffer(self.kept)
        self.tensors = 0

    def steps_refused(self, why: str) -> None:
        self.reported.append(why)

    def grow(self, tensors: int) -> None:
        while self.tensors < tensors:
            self.kept.tensor(self.tensors, entry(self.tensors))
            self.buffer.row.grow()
            self.tensors += 1

    def step(self, step: int, *, is_traced: bool = False) -> None:
        row = self.buffer.row
        for number in range(self.tensors):
            row.call_count[number], row.numel[number], row.amax[number] = 1.0, 2.0, step + number / 1000
        self.buffer.set_series("loss", step, step / 10)
        self.buffer.close(step, is_traced=is_traced)

    def left(self) -> CrashRecord:
        """As the watcher reads it: by descriptors of its own."""
        descriptors = [os.dup(each) for each in self.kept.descriptors]
        found = CrashRecord(descriptors)
        finalize(found, lambda: [os.close(each) for each in descriptors])  # thousands of them are read in some tests
        return found


def same(found: Block, wanted: Block) -> None:
    assert found.steps.tolist() == wanted.steps.tolist()
    np.testing.assert_array_equal(found.rows, wanted.rows)
    assert found.series == wanted.series and found.traced == wanted.traced


def test_where_no_more_memory_is_given_training_goes_on_and_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank()
    reported = rank.reported

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(anonymous_file.os, "ftruncate", refuse)
        rank.grow(3)
        rank.step(0)
        rank.grow(100)
        rank.step(1)
        taken = rank.buffer.take()
        rank.step(2)
    assert reported == ["the kernel gives no memory that outlives it (Too many open files)"]
    assert taken.steps.tolist() == [0, 1] and taken.rows[POSITIONS["call_count"]].sum() == 103
    assert rank.buffer.take().steps.tolist() == [2]
    found = rank.left()
    assert [block.steps.tolist() for block in found.blocks(0)] == [[], []], "only its series are there"
    assert found.position().calls.size == 0


def test_what_is_closed_is_read_back_as_it_would_have_been_taken() -> None:
    rank = Rank()
    rank.grow(3)
    rank.step(5)
    rank.step(6, is_traced=True)
    rank.grow(4)  # the row of steps 5 and 6 had three
    rank.step(7)
    rank.buffer.set_series("loss", 6, -1.0)  # the last value counts
    (found,) = rank.left().blocks(0)
    same(found, rank.buffer.take())
    assert found.series == {"loss": {5: 0.5, 6: -1.0, 7: 0.7}}


def test_the_step_in_progress_is_not_there() -> None:
    rank = Rank()
    rank.grow(2)
    rank.step(0)
    rank.buffer.row.call_count[0] = 1.0
    (found,) = rank.left().blocks(0)
    assert found.steps.tolist() == [0]


def test_nan_inf_and_the_largest_steps_are_exact() -> None:
    rank = Rank()
    rank.grow(1)
    rank.kept.series("loss", 2**53 - 1, float("inf"))
    rank.kept.series("loss", 3, float("nan"))
    rank.buffer.close(2**61)
    (found,) = rank.left().blocks(0)
    assert found.steps.tolist() == [2**61]
    assert found.series["loss"][2**53 - 1] == float("inf") and np.isnan(found.series["loss"][3])


def test_a_process_without_crash_state_keeps_its_steps_to_itself() -> None:
    kept = SharedState(is_shared=False)
    assert kept.descriptors == [] and "watcher=False" in kept.why_not
    buffer = StepBuffer(kept)
    buffer.row.grow()
    buffer.close(0)
    assert buffer.take().steps.tolist() == [0]


def test_where_the_kernel_gives_no_memory_the_steps_are_still_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", refuse)
    kept = SharedState(is_shared=True)
    assert "No space left" in kept.why_not and kept.descriptors == []
    buffer = StepBuffer(kept)
    buffer.row.grow()
    buffer.close(4)
    assert buffer.take().steps.tolist() == [4]


def test_values_that_are_still_on_an_accelerator_are_not_observed_rather_than_zero() -> None:
    rank = Rank()
    rank.grow(3)
    row = rank.buffer.row
    for number in range(3):
        row.call_count[number], row.numel[number], row.full_numel[number] = 1.0, 8.0, 8.0
    row.columns["zero_count"][1] = 8.0  # all of it zero: that was measured
    row.nan_count[2] = 8.0
    rank.buffer.close(0)
    (found,) = rank.left().blocks(0)
    assert found.rows[POSITIONS["call_count"], 0].tolist() == [0.0, 1.0, 1.0]
    assert found.rows[POSITIONS["amin"], 0].tolist() == [np.inf] * 3


def test_a_block_is_there_until_its_batch_is_in_the_spool() -> None:
    rank = Rank()
    rank.grow(1)
    for sequence in range(20):  # more than there are areas
        rank.step(sequence)
        block = rank.buffer.take()
        assert [each.steps.tolist() for each in rank.left().blocks(sequence)] == [[sequence]]
        rank.kept.sending(sequence, (block.number, 0))
        assert len(rank.left().blocks(sequence)) == 1, "it is not in the spool yet"
        assert rank.left().blocks(sequence + 1) == [], "killed after it was put there, before that was noted"
        rank.kept.sent()
        assert rank.left().blocks(sequence) == [] and rank.left().next_sequence == sequence + 1


def test_with_all_areas_waiting_the_newest_are_kept() -> None:
    rank = Rank()
    rank.grow(1)
    for step in range(10):
        rank.step(step)
        rank.buffer.take()
    found = [step for block in rank.left().blocks(0) for step in block.steps.tolist()]
    assert found == list(range(10))[-len(found) :] and len(found) == layout.AREAS - 1


def test_events_are_there_until_their_batch_is() -> None:
    rank = Rank()
    for number in range(3):
        rank.kept.event(Event("fault", number, number, "x" * 40_000))
    assert [each.step for each in rank.left().events(0)] == [0, 1, 2]
    rank.kept.sending(0, (0, 2))
    assert [each.step for each in rank.left().events(0)] == [0, 1, 2]
    assert [each.step for each in rank.left().events(1)] == [2]
    rank.kept.sent()
    assert [each.step for each in rank.left().events(1)] == [2]
    rank.kept.sending(1, (0, 3))
    rank.kept.sent()
    assert rank.left().events(2) == ()
    assert os.fstat(rank.kept.descriptors[2]).st_size == 0, "what is in the spool takes no memory"
    rank.kept.event(Event("later", 1, 9))
    assert [each.kind for each in rank.left().events(2)] == ["later"]


def test_names_that_were_not_written_whole_are_left_out() -> None:
    rank = Rank()
    rank.grow(3)
    descriptor = rank.kept.descriptors[1]
    os.ftruncate(descriptor, os.fstat(descriptor).st_size - 3)
    assert [each.fqn for each in rank.left().names.tensors] == ["layer0", "layer1"]


def test_what_is_no_such_memory_is_refused() -> None:
    descriptor = os.memfd_create("other")
    os.ftruncate(descriptor, layout.BASE_BYTES)
    with pytest.raises(ValueError, match="version"):
        CrashRecord([descriptor, descriptor, descriptor])


class Killed:
    """Looks at the memory before every line of `stored_steps` that runs, as if the process were killed there."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look, self.looks = look, 0
        self._is_looking = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != stored_steps.__file__ or self._is_looking:
            return None
        if event in ("line", "return"):
            self._is_looking = True
            self.looks += 1
            self.look()
            self._is_looking = False
        return self


@pytest.mark.parametrize(
    ("steps", "buffer_bytes"),
    [(5, 64 * 11 * 8 * 2), *(pytest.param(14, bound, marks=pytest.mark.slow) for bound in (1 << 20, 64 * 11 * 8 * 2))],
)
def test_wherever_it_is_killed_each_closed_step_is_in_the_spool_or_in_memory_and_in_one_only(
    monkeypatch: pytest.MonkeyPatch, steps: int, buffer_bytes: int
) -> None:
    monkeypatch.setattr(limits, "BUFFER_BYTES", buffer_bytes)
    rank, spool, closed = Rank(), list[list[int]](), list[int]()
    open_step = [-1]

    def look() -> None:
        found = [step for block in rank.left().blocks(len(spool)) for step in block.steps.tolist()]
        held = [step for batch in spool for step in batch] + found
        assert held in (closed, [*closed, open_step[0]]), (held, closed, open_step)

    killed = Killed(look)
    before = sys.gettrace()
    try:
        sys.settrace(killed)
        for step in range(steps):
            rank.grow((1, 1, 70, 70, 70, 150)[min(step, 5)])  # the areas grow, with steps in them
            open_step[0] = step
            rank.step(step)
            closed.append(step)
            if rank.buffer.is_full or step in (3, 4, 9):
                block = rank.buffer.take()
                rank.kept.sending(len(spool), (block.number, 0))
                spool.append(block.steps.tolist())  # whole or not at all, as a record of the spool is
                rank.kept.sent()
    finally:
        sys.settrace(before)
    assert killed.looks > 30 * steps


def test_what_nobody_closes_goes_with_its_owner() -> None:
    kept = SharedState(is_shared=True)
    numbers = kept.descriptors
    del kept
    gc.collect(1)  # of what is as young as it is
    assert len(numbers) == 3 and not any(Path(f"/proc/self/fd/{each}").exists() for each in numbers)
