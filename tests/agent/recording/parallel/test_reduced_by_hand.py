"""Which parameters' gradients a loop has reduced itself. With several ranks: tests/e2e/test_replicas.py."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rangewatch.core.guard import Guard
from rangewatch.recording.parallel.reduced_by_hand import ReducedByHand


@pytest.fixture
def reductions(tmp_path: Path) -> Iterator[ReducedByHand]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    heard = ReducedByHand()
    heard.listen(Guard(), is_wanted=True)
    yield heard
    heard.forget()
    dist.destroy_process_group()


def with_gradients() -> list[nn.Parameter]:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=False))
    model(torch.ones(2, 3)).sum().backward()
    return list(model.parameters())


def known(heard: ReducedByHand, parameters: list[nn.Parameter]) -> list[str | None]:
    found = [heard.of(each) for each in parameters]
    return [None if each is None else each.why_not() for each in found]


def reduce(tensor: Tensor | None) -> None:
    assert tensor is not None
    dist.all_reduce(tensor)


def test_what_is_reduced_is_known_by_its_memory(reductions: ReducedByHand) -> None:
    weight, bias, other = parameters = with_gradients()
    reduce(weight.grad)
    assert bias.grad is not None
    reduce(bias.grad.data)  # as torch's tutorial has it
    assert other.grad is not None
    reduce(other.grad.clone())  # for a line of the log
    reductions.find(parameters)
    assert known(reductions, parameters) == ["", "", None]


def test_what_is_reduced_to_one_rank_is_known_too(reductions: ReducedByHand) -> None:
    weight, bias = parameters = with_gradients()[:2]
    assert weight.grad is not None
    dist.reduce(weight.grad, dst=0)
    reductions.find(parameters)
    assert known(reductions, parameters) == ["", None]
    assert bias.grad is not None


def test_memory_that_was_let_go_of_may_be_a_gradient_s_next(reductions: ReducedByHand) -> None:
    parameter, memory = nn.Parameter(torch.ones(1000)), bytearray(4000)
    activation = torch.frombuffer(memory, dtype=torch.float32)
    reduce(activation)
    del activation
    parameter.grad = torch.frombuffer(memory, dtype=torch.float32)
    reductions.find([parameter])
    assert known(reductions, [parameter]) == [None]


def test_sparse_gradients_are_not_known(reductions: ReducedByHand) -> None:
    words, layer = nn.Embedding(5, 3, sparse=True), nn.Linear(3, 3)
    layer(words(torch.arange(3))).sum().backward()
    parameters = [*words.parameters(), *layer.parameters()]
    for each in parameters:
        reduce(each.grad)
    reductions.find(parameters)
    assert known(reductions, parameters) == [None, "", ""]


def test_an_update_without_a_reduction_ends_it_for_good(reductions: ReducedByHand) -> None:
    weight, bias, other = parameters = with_gradients()
    for each in parameters:
        reduce(each.grad)
    reductions.find(parameters)
    reductions.begin_step()
    reduce(weight.grad)
    bias.grad = None  # not updated: what was alike stays so
    reductions.before_update(parameters)
    assert [not each for each in known(reductions, parameters)] == [True, True, False]
    reductions.begin_step()
    reductions.before_update([])  # nothing is reduced at all, whosever turn it is
    assert [not each for each in known(reductions, parameters)] == [False, True, False]
    reductions.begin_step()
    for each in (weight, other):
        reduce(each.grad)
    reductions.before_update(parameters)
    assert [not each for each in known(reductions, parameters)] == [False, True, False]


def test_compiled_code_may_name_its_operation(reductions: ReducedByHand) -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def doubled(values: Tensor) -> Tensor:
        twice = values * 2
        dist.all_reduce(twice, op=dist.ReduceOp.SUM, async_op=False)
        return twice + 1

    assert doubled(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]


def test_nobody_listens_where_nothing_was_heard(reductions: ReducedByHand) -> None:
    own = vars(dist.ProcessGroup)["allreduce"]
    reductions.listen(Guard(), is_wanted=False)
    assert vars(dist.ProcessGroup)["allreduce"] is not own
    reduce(torch.ones(2))
    reductions.find(with_gradients())
    assert reductions.count == 0


def test_the_call_gets_what_the_loop_gave_it(reductions: ReducedByHand) -> None:
    parameter, other = with_gradients()[:2]
    assert parameter.grad is not None
    assert other.grad is not None
    with contextlib.suppress(TypeError):  # older torch takes no iterator
        dist.group.WORLD.allreduce(each for each in [parameter.grad]).wait()
    dist.group.WORLD.allreduce((other.grad,)).wait()
    reductions.find([parameter, other])
    assert known(reductions, [parameter, other]) == [None, ""]


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_nothing_of_it_is_compiled(reductions: ReducedByHand) -> None:
    def reduced(gradient: Tensor) -> Tensor:
        dist.all_reduce(gradient, async_op=True).wait()  # which breaks the graph, so what is called next is compiled
        return gradient / 2

    parameter = with_gradients()[0]
    assert parameter.grad is not None
    with pytest.MonkeyPatch.context() as patch:
        unraisable: list[object] = []
        patch.setattr(sys, "unraisablehook", unraisable.append)
        torch.compile(reduced, backend="eager")(parameter.grad)
    assert not unraisable
    reductions.find([parameter])
    assert known(reductions, [parameter]) == [""]
