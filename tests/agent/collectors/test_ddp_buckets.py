"""Whose gradients an all_reduce carries: models that are wrapped later, and what must not happen to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.modules import module as nn_module
from torch.nn.parallel import DistributedDataParallel

from rangewatch.collectors.collectives.ddp_buckets import Bucket, DdpBuckets
from rangewatch.collectors.collectives.ops import ALL_REDUCE
from rangewatch.collectors.collectives.process_groups import Group, Record
from rangewatch.core.guard import Guard


@pytest.fixture
def alone() -> Iterator[None]:
    """A gloo group of one rank in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_model_that_is_wrapped_later_is_found(alone: None) -> None:
    own = DistributedDataParallel.__init__
    first, second = DdpBuckets(Guard()), DdpBuckets(Guard())
    first.start()
    second.start()
    model = DistributedDataParallel(nn.Linear(3, 2))
    model(torch.ones(1, 3)).sum().backward()
    assert first.refresh() and second.refresh()
    assert [bucket.size_bytes for bucket in first.buckets] == [32]
    first.stop()
    assert DistributedDataParallel.__init__ is not own, "the other one still hears"
    second.stop()
    assert DistributedDataParallel.__init__ is own


def test_what_another_wraps_on_top_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    buckets = DdpBuckets(Guard())
    own = DistributedDataParallel.__init__
    buckets.start()
    ours = DistributedDataParallel.__init__
    DistributedDataParallel.__init__ = lambda model: ours(model)  # type: ignore[method-assign,misc,assignment]
    theirs = DistributedDataParallel.__init__
    buckets.stop()
    found = DistributedDataParallel.__init__
    DistributedDataParallel.__init__ = own  # type: ignore[method-assign]
    assert found is theirs


def test_our_thread_may_start_and_end_while_a_model_is_built() -> None:
    """Torch goes through its hooks of modules without a lock: one more or less is a RuntimeError of the user's."""
    buckets = DdpBuckets(Guard())

    def on_our_thread(work: object) -> None:
        thread = threading.Thread(target=work)  # type: ignore[arg-type]
        thread.start()
        thread.join()

    def meanwhile(parent: nn.Module, name: str, module: nn.Module | None) -> None:
        on_our_thread(buckets.start)

    handle = nn_module.register_module_module_registration_hook(meanwhile)
    try:
        nn.Sequential(nn.Identity(), nn.Identity())
    finally:
        handle.remove()
        on_our_thread(buckets.stop)


def test_fewer_buckets_than_before_while_they_are_numbered() -> None:
    """The look may end later than it was waited for: what is counted meanwhile was of the buckets before."""
    buckets, record = DdpBuckets(Guard()), Record()
    record.group, record.kind, record.bytes = Group("0", [0], "", "cpu", "gloo", 0), ALL_REDUCE, 8
    buckets._group, buckets._next = "0", 5
    buckets.buckets = [Bucket(4, ["a"]), Bucket(8, ["b"])]
    buckets.number([record], are_steps_exact=False)
    assert record.bucket == 1
