"""The order of the tensors in a step: of those that show late, and where modules or whole passes come again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.core import limits
from rangewatch.recording.tensor_names import CallOrder
from tests.agent.ingest_double import IngestDouble


class Branching(nn.Module):
    """Calls its layers by the letters of a route; the first layer's weight is trained, so that all have gradients."""

    def __init__(self, letters: str) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({letter: nn.Linear(2, 2) for letter in letters})

    def forward(self, route: str) -> Tensor:
        value = torch.ones(1, 2)
        for letter in route:
            value = self.layers[letter](value)
        return value


def order_of(ingest: IngestDouble, steps: list[list[str]], kinds: tuple[str, ...] = ("output", "grad_output")) -> str:
    """Letters of the layers in call order, those of gradients in capitals."""
    model = Branching("abcdxyz")
    with rangewatch.attach(model, url=ingest.url, kinds=kinds) as handle:
        for routes in steps:
            for route in routes:
                model(route).sum().backward()
            handle.step()
    catalogue = max(ingest.catalogues.values(), key=len)
    entries = sorted(enumerate(catalogue), key=lambda each: (each[1].call_index, each[0]))
    assert all(0 <= entry.call_index < 2**31 for entry in catalogue)
    names = [(entry.fqn.removeprefix("layers."), entry.kind) for _, entry in entries if entry.fqn]
    return "".join(name if kind == "output" else name.upper() for name, kind in names)


def test_a_late_tensor_comes_after_the_one_read_before_it(ingest: IngestDouble) -> None:
    assert order_of(ingest, [["abc"], ["axybc"]]) == "axybcCBYXA"


def test_a_late_tensor_in_front_and_at_the_end(ingest: IngestDouble) -> None:
    assert order_of(ingest, [["bc"], ["abcd"]], ("output",)) == "abcd"


def test_a_module_that_is_called_again_says_nothing(ingest: IngestDouble) -> None:
    assert order_of(ingest, [["axbxc"], ["axbxcxd"]], ("output",)) == "axbcd"


def test_in_a_later_microbatch(ingest: IngestDouble) -> None:
    assert order_of(ingest, [["abc", "axbc"], ["abc", "abyc"]]) == "axbycCYBXA"


def test_one_pass_after_another_in_the_first_step(ingest: IngestDouble) -> None:
    """As two networks in one model that train in turn."""
    assert order_of(ingest, [["ab", "cd"]]) == "abBAcdDC"


def test_a_gap_that_is_used_up_keeps_the_order_of_one_branch() -> None:
    order = CallOrder()
    first = order.add("output")
    order.passed(0)
    last = order.add("output")
    order.begin_step()
    order.passed(0)
    late = []
    for number in range(2, 500):
        late.append((order.add("output"), number))
        order.passed(number)
    assert (first, 0) < late[0] and late == sorted(late) and late[-1] < (last, 1)


def test_the_first_step_leaves_gaps_and_each_step_costs_no_search() -> None:
    order = CallOrder()
    indices = []
    for number in range(20_000):
        indices.append(order.add("output"))
        order.passed(number)
    assert indices == [limits.CALL_INDEX_GAP * (number + 1) for number in range(20_000)]
