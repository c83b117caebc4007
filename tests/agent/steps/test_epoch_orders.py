"""Passes of a loader in the order of the one before: what counts as one, and what a batch may be made of."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from rangewatch.steps.epoch_orders import EpochOrders
from rangewatch.wire.events import RepeatedOrder

ODD: dict[str, Any] = {
    "texts": lambda at: ["a", "b"],
    "none in host memory": lambda at: torch.zeros(2, device="meta"),
    "sparse": lambda at: torch.eye(2).to_sparse() * at,
    "complex": lambda at: torch.ones(2, dtype=torch.complex64) * at,
    "a mapping with a string": lambda at: {"x": torch.full((2, 3), float(at)), "name": "row"},
    "whole numbers": lambda at: (torch.tensor([at]), [torch.tensor(at)]),
    "booleans and transposed": lambda at: (torch.tensor([True]), torch.full((2, 3), float(at)).t(), torch.tensor(at)),
    "an empty one": lambda at: torch.zeros(0),
}


class Loop:
    """A loop over a loader, with a step after each batch, or none."""

    def __init__(self) -> None:
        self.said: list[RepeatedOrder] = []
        observer = SimpleNamespace(is_active=True)
        self.agent: Any = SimpleNamespace(observer=observer, step=0, events=SimpleNamespace(add=self.said.append))
        self.orders = EpochOrders(self.agent)

    def go(self, loader: Any, *, batch: Any = None, is_trained: bool = True, most: int = 99) -> None:
        iterator = iter(loader)
        self.orders.began(loader, iterator)
        for at, each in enumerate(iterator):
            if at == most:
                break
            self.orders.given(iterator, each if batch is None else batch(at))
            self.agent.step += is_trained


def loader_of(sampler: Any, count: int = 24) -> DataLoader[Any]:
    return DataLoader(torch.arange(count), batch_size=2, sampler=sampler)


def distributed(count: int = 24) -> DistributedSampler[Any]:
    return DistributedSampler(torch.arange(count), num_replicas=1, rank=0)


def test_each_spell_is_said_once_and_its_end() -> None:
    loop, sampler = Loop(), distributed()
    loader = loader_of(sampler)
    for epoch in (0, 0, 0, 1, 2, 2):
        sampler.set_epoch(epoch)
        loop.go(loader)
    assert [(each.repeats, each.epoch, each.first) for each in loop.said] == [(1, 0, 12), (0, 1, 36), (1, 2, 60)]


class OfBatches:
    """Batches of neighbours in an order that `epoch` should decide on."""

    def __init__(self, *, is_told: bool) -> None:
        self.epoch, self.is_told, self.seed = 0, is_told, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch * self.is_told)
        return iter([[2 * at, 2 * at + 1] for at in torch.randperm(12, generator=generator).tolist()])


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("epochs", [(0, 1, 2), (0, 0, 0)])
def test_a_sampler_of_batches_that_passes_over_its_epoch(is_told: bool, epochs: tuple[int, ...]) -> None:
    """Whether one that is never told an epoch is there to shuffle is not known."""
    loop, sampler = Loop(), OfBatches(is_told=is_told)
    loader: DataLoader[Any] = DataLoader(torch.arange(24), batch_sampler=sampler)  # type: ignore[arg-type]
    for epoch in epochs:
        sampler.set_epoch(epoch)
        loop.go(loader)
    said = [(each.repeats, each.first, each.is_epoch_unused) for each in loop.said]
    assert said == ([(1, 12, True)] if not is_told and epochs[1] else [])


@pytest.mark.parametrize("seeds", [(7, 7), (7, 8)])
def test_a_seed_that_is_set_before_each_pass(seeds: tuple[int, int]) -> None:
    loop = Loop()
    loader = loader_of(RandomSampler(torch.arange(24)))
    for seed in seeds:
        torch.manual_seed(seed)
        loop.go(loader)
    assert [each.is_seeded for each in loop.said] == ([True] if seeds[0] == seeds[1] else [])


@pytest.mark.parametrize("what", ["no steps", "few batches", "broken off"])
def test_passes_that_do_not_count(what: str) -> None:
    loop, loader = (
        Loop(),
        loader_of(distributed(6 if what == "few batches" else 24), 6 if what == "few batches" else 24),
    )
    for _ in range(4):
        loop.go(loader, is_trained=what != "no steps", most=3 if what == "broken off" else 99)
    assert loop.said == []


@pytest.mark.parametrize("name", ODD)
def test_a_batch_may_be_anything(name: str) -> None:
    loop, loader = Loop(), loader_of(RandomSampler(range(24)))
    for _ in range(3):
        loop.go(loader, batch=ODD[name])
    is_known = name in ("a mapping with a string", "whole numbers", "booleans and transposed")
    assert [(each.sampler, each.batches) for each in loop.said] == [("RandomSampler", 8)] * is_known


def test_batches_that_are_all_the_same_say_nothing() -> None:
    loop, loader = Loop(), loader_of(RandomSampler(range(24)))
    for _ in range(3):
        loop.go(loader, batch=lambda at: torch.ones(3))
    assert loop.said == []


def test_loaders_are_not_kept() -> None:
    loop = Loop()
    loop.go(loader_of(distributed()))
    assert len(loop.orders._loaders) == len(loop.orders._iterators) == 0


def test_a_pass_over_the_training_data_without_steps_is_no_epoch() -> None:
    loop, sampler = Loop(), distributed()
    loader = loader_of(sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        loop.go(loader)
        loop.go(loader, is_trained=False)  # its accuracy, or statistics of norms, in the same order
    assert loop.said == []


def test_steps_between_batches_of_another_loader_do_not_count() -> None:
    """As where each step, or each 10th, is followed by a batch of an evaluation that goes round and round."""
    loop, sampler = Loop(), distributed(200)
    trained, evaluated = loader_of(sampler, 200), loader_of(distributed(), 24)
    rounds = iter(())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        iterator = iter(trained)
        loop.orders.began(trained, iterator)
        for batch in iterator:
            loop.orders.given(iterator, batch)
            loop.agent.step += 1
            other = next(rounds, None)
            if other is None:
                rounds = iter(evaluated)
                loop.orders.began(evaluated, rounds)
                other = next(rounds)
            loop.orders.given(rounds, other)
    assert loop.said == []


def test_a_step_of_many_batches_is_one_of_that_loader() -> None:
    loop, loader = Loop(), loader_of(distributed())
    for _ in range(2):
        iterator = iter(loader)
        loop.orders.began(loader, iterator)
        for number, batch in enumerate(iterator, 1):
            loop.orders.given(iterator, batch)
            loop.agent.step += number % 6 == 0
    assert [(each.repeats, each.first) for each in loop.said] == [(1, 2)]


def test_an_epoch_that_is_set_before_the_first_batch_counts() -> None:
    """Without workers a sampler begins with the first batch, and not where the iterator is made."""
    loop, sampler = Loop(), distributed()
    loader = loader_of(sampler)
    for epoch in range(4):
        iterator = iter(loader)
        loop.orders.began(loader, iterator)
        sampler.set_epoch(epoch // 2 + 1 if epoch % 2 else 5 + epoch)
        for batch in iterator:
            loop.orders.given(iterator, batch)
            loop.agent.step += 1
        sampler.set_epoch(0)  # what the next iterator is made with
    assert loop.said == []


class ByLength:
    """Rows in an order of their own, which a trainer tells the epoch as it does any."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[2 * at, 2 * at + 1] for at in reversed(range(12))])


def test_a_sampler_that_draws_no_order() -> None:
    loop, sampler = Loop(), ByLength()
    loader: DataLoader[Any] = DataLoader(torch.arange(24), batch_sampler=sampler)  # type: ignore[arg-type]
    for epoch in range(3):
        sampler.set_epoch(epoch)
        loop.go(loader)
    assert loop.said == []


class Drawn(RandomSampler):
    """It never calls its parent's `__init__`."""

    def __init__(self) -> None:
        self.count = 24

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.count).tolist())


def test_a_random_sampler_without_a_generator() -> None:
    loop, loader = Loop(), loader_of(Drawn())
    for _ in range(2):
        torch.manual_seed(3)
        loop.go(loader)
    assert [(each.first, each.is_seeded) for each in loop.said] == [(12, True)]


class Endless(RandomSampler):
    """Has no length, and says so."""

    def __len__(self) -> int:
        raise TypeError("endless")


def test_a_sampler_is_not_asked_for_its_length() -> None:
    loop, loader = Loop(), loader_of(Endless(range(24)))
    for _ in range(2):
        loop.go(loader)
    assert loop.said == []
