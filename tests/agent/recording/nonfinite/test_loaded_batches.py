"""What is known of a loader's batch where the model or the loss was given NaN, and when nothing is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rangewatch.recording.events import OpenStep
from rangewatch.recording.nonfinite.loaded_batches import KEPT, LoadedBatches
from rangewatch.recording.nonfinite.nonfinite_context import TensorReader
from rangewatch.wire.events import LoadedBatch

NAN = float("nan")


class Loop:
    """Gives batches, and holds them where the loop would."""

    def __init__(self) -> None:
        self.step = OpenStep(0)
        self.loaded = LoadedBatches(self.step)
        self.held: list[Any] = []

    def given(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        self.loaded.given(None, list(tensors))
        self.held.append(tensors)
        return tensors

    def batch(self, batch: Any) -> None:
        self.held.append(batch)
        self.loaded.given(None, batch)

    def known(self, *bad: Tensor) -> LoadedBatch | None:
        return self.loaded.known(bad, TensorReader())


def test_a_finite_batch_and_what_was_made_of_it() -> None:
    loop = Loop()
    x, _ = loop.given(torch.ones(4, 3), torch.tensor([1, 2]))
    assert loop.known(x / 0 - x / 0) == LoadedBatch(1, 0, is_given=False)


def test_a_batch_that_held_it() -> None:
    loop = Loop()
    x, y = loop.given(torch.ones(4, 3), torch.tensor([1.0, NAN]))
    assert loop.known(y[1:]) == LoadedBatch(2, 1, is_given=True)
    assert loop.known(x * y.sum()) == LoadedBatch(2, 1, is_given=False)


def test_the_batch_before_the_one_that_was_loaded_ahead() -> None:
    loop = Loop()
    first = loop.given(torch.tensor([NAN, 1.0]))
    loop.given(torch.ones(2))
    assert loop.known(*first) == LoadedBatch(2, 1, is_given=True)


def test_of_several_loaders_the_newest_of_each_must_be_there() -> None:
    loop, bad = Loop(), torch.tensor([NAN, 1.0])
    one, other = object(), object()
    loop.loaded.given(one, [bad.double()])  # gone, as where the loop makes another dtype of it
    loop.loaded.given(other, loop.given(torch.ones(2)))
    assert loop.known(bad) is None
    loop.loaded.given(one, [bad])  # a later one of the same is what is trained on
    assert loop.known(bad) == LoadedBatch(3, 1, is_given=True)


def numbers_alone(loop: Loop) -> None:
    """What they are numbers of lies elsewhere, as features of nodes or rows of a table do."""
    loop.given(torch.tensor([3, 1]))


def gone(loop: Loop) -> None:
    loop.given(torch.ones(2))
    loop.held.clear()


def in_place(loop: Loop) -> None:
    loop.given(torch.ones(2))[0].div_(0)


def long_ago(loop: Loop) -> None:
    loop.given(torch.ones(2))
    loop.step.number += 2


def all_ahead(loop: Loop) -> None:
    for _ in range(KEPT):
        loop.given(torch.ones(2))


def by_a_thread(loop: Loop) -> None:
    thread = threading.Thread(target=lambda: loop.given(torch.ones(2)))
    thread.start()
    thread.join()


def with_many_tensors(loop: Loop) -> None:
    loop.given(*(torch.ones(2) for _ in range(9)))


def with_an_array(loop: Loop) -> None:
    loop.batch({"x": torch.ones(2), "y": np.array([NAN])})


def with_an_object(loop: Loop) -> None:
    loop.batch([torch.ones(2), object()])


def with_many_texts(loop: Loop) -> None:
    loop.batch((torch.ones(2), ["a"] * 5_000))


def of_texts(loop: Loop) -> None:
    loop.batch(["a", "b"])


def in_inference_mode(loop: Loop) -> None:
    with torch.inference_mode():
        loop.given(torch.ones(2))


@pytest.mark.parametrize(
    "how",
    [gone, in_place, long_ago, all_ahead, by_a_thread, with_many_tensors, with_an_array, with_an_object,
     with_many_texts, of_texts, numbers_alone, in_inference_mode],
)  # fmt: skip
def test_when_nothing_is_known(how: Callable[[Loop], None]) -> None:
    loop = Loop()
    how(loop)
    assert loop.known(torch.tensor([NAN])) is None


def test_batches_that_come_and_go() -> None:
    loop = Loop()
    for _ in range(3 * KEPT):
        loop.held.clear()
        loop.given(torch.ones(2))
    assert loop.known(torch.tensor([NAN])) == LoadedBatch(1, 0, is_given=False)
