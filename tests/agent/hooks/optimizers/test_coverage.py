"""Parameters that no optimizer has, and those of an optimizer that no backward reaches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.wire.events import Optimizers, read
from tests.agent.ingest_double import IngestDouble


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.spare, self.frozen = (nn.Linear(2, 2) for _ in range(4))
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.frozen(x)))  # type: ignore[no-any-return]


def train(ingest: IngestDouble, model: nn.Module, optimizers: list[Any], steps: int, **options: Any) -> None:
    with rangewatch.attach(model, optimizers, url=ingest.url, **options):
        for _ in range(steps):
            model(torch.ones(1, 2)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()


def reported(ingest: IngestDouble) -> list[Optimizers]:
    found = [read(Optimizers, each.data) for each in ingest.events("optimizers")]
    return [each for each in found if each is not None]


def test_what_is_left_out_and_what_is_not_reached(ingest: IngestDouble) -> None:
    model = Net()
    optimizer = torch.optim.SGD(chain(model.body.parameters(), model.spare.parameters()), lr=0.1)
    train(ingest, model, [optimizer], 10)
    assert reported(ingest) == [
        Optimizers(
            classes=("SGD",), left_out=("head.weight", "head.bias"), left_out_count=2,
            unreached=("spare.weight", "spare.bias"), unreached_count=2, trainable_count=6, frozen_count=2,
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda given: torch.optim.SGD(given, 0.1, momentum=0.7), (0.7, 0.0)),
        (lambda given: torch.optim.Adam(given, 0.1, betas=(0.999, 0.9)), (0.999, 0.9)),
        (lambda given: torch.optim.Adam(given, 0.1, betas=(torch.tensor(0.5), torch.tensor(0.9))), (0.0, 0.0)),
        (lambda given: torch.optim.Adagrad(given, 0.1), (0.0, 0.0)),
        (lambda given: torch.optim.Rprop(given, 0.1), (0.0, 0.0)),
    ],
)
def test_momentum_and_betas(ingest: IngestDouble, make: Any, expected: tuple[float, float]) -> None:
    model = nn.Linear(2, 1)
    train(ingest, model, [make(model.parameters())], 4)
    assert {(each.momentum, each.second_beta) for each in reported(ingest)} == {expected}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("frozen", True, (("frozen",), True)), ("body", False, (("body",), False)), ("frozen", False, ((), False)),
        ("body", True, ((), False)), ("", True, ((), False)), ("body", "yes", ((), False)),
        ("spare", False, ((), False)),
    ],
)  # fmt: skip
def test_requires_grad_of_a_module(ingest: IngestDouble, name: str, value: Any, expected: Any) -> None:
    """`spare` is in no optimizer: nothing trains it, whatever its parameters have."""
    model = Net()
    model.get_submodule(name).requires_grad = value
    held = [each for fqn, each in model.named_parameters() if not fqn.startswith("spare")]
    train(ingest, model, [torch.optim.SGD(held, 0.1)], 4)
    assert {(each.switched, each.switched_to) for each in reported(ingest)} == {expected}


@pytest.mark.parametrize("maximize", [True, False])
def test_whether_it_maximizes(ingest: IngestDouble, maximize: bool) -> None:
    model = nn.Linear(2, 1)
    train(ingest, model, [torch.optim.AdamW(model.parameters(), 0.1, maximize=maximize)], 4)
    assert {each.maximizes for each in reported(ingest)} == {maximize}


def test_a_momentum_that_passes_1_is_sent_at_once(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(14):
            optimizer.param_groups[0]["momentum"] = 1.5 if 9 <= step < 12 else 0.9
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    sent = [
        (each.step, known.momentum) for each in ingest.events("optimizers") if (known := read(Optimizers, each.data))
    ]
    assert sent[-2:] == [(9, 1.5), (12, 0.9)]


def test_a_new_optimizer_takes_it_back(ingest: IngestDouble) -> None:
    model = Net()
    first = torch.optim.SGD(model.body.parameters(), lr=0.1)
    with rangewatch.attach(model, first, url=ingest.url):
        for step in range(6):
            if step == 3:
                first = torch.optim.Adam(chain(model.body.parameters(), model.head.parameters()), lr=0.1)
            model(torch.ones(1, 2)).sum().backward()
            first.step()
    found = reported(ingest)
    assert [each.left_out_count for each in found] == [4, 2]
    assert found[-1].left_out == ("spare.weight", "spare.bias") and found[-1].classes == ("Adam",)


def test_none_is_said_where_all_is_well_but_what_they_are(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 2)
    train(ingest, model, [torch.optim.SGD(model.parameters(), lr=0.1)], 4)
    assert [(each.left_out, each.unreached, each.trainable_count) for each in reported(ingest)] == [((), (), 2)]


class Tower(nn.Module):
    """Gives what `leaves` makes of its net's output."""

    def __init__(self, leaves: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.leaves = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), leaves

    def forward(self, x: Tensor) -> Tensor:
        return self.leaves(self.net(x))


class Teacher(nn.Module):
    """A copy whose outputs are targets."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@pytest.mark.parametrize(
    ("song", "expected"),
    [
        (Tower(lambda x: torch.from_numpy(x.detach().numpy() + 1)), ("song",)),
        (Tower(lambda x: x.detach()), ("song",)),
        (Tower(lambda x: x), ()),
        (Teacher(), ()),
    ],
    ids=["numpy", "detach", "unused", "a teacher"],
)
def test_where_the_graph_is_cut(ingest: IngestDouble, song: nn.Module, expected: tuple[str, ...]) -> None:
    model = nn.ModuleDict({"listener": nn.Linear(2, 2), "song": song})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(6):
            x = torch.ones(1, 2)
            made = model["song"](x)
            (model["listener"](x) * (made.detach() if not expected else made)).sum().backward()
            optimizer.step()
    assert reported(ingest)[-1].unreached and reported(ingest)[-1].cut_in == expected


@pytest.mark.parametrize("level", ["grads", "outputs"])
def test_without_any_gradient_nothing_is_unreached(ingest: IngestDouble, level: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, level=level):
        for _ in range(4):
            optimizer.step()
    assert [each.unreached for each in reported(ingest)] == [()]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [((0.0, 0.0), [(66, 64)]), ((0.0, 1e-9), []), ((torch.tensor(0.0), 0.0), [])],
    ids=["all", "one", "a tensor"],
)
def test_learning_rates_of_zero_are_reported_once_they_last(
    ingest: IngestDouble, rates: tuple[Any, Any], expected: list[tuple[int, int]]
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": [each]} for each in model.parameters()], lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(100):
            if step == 3:
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    steps = [(each.step, read(Optimizers, each.data)) for each in ingest.events("optimizers")]
    assert [(step, each.zero_rate_steps) for step, each in steps if each and each.zero_rate_steps] == expected


@pytest.mark.parametrize("is_told", [False, True])
def test_a_parameter_that_takes_the_place_of_another(ingest: IngestDouble, is_told: bool) -> None:
    """It is read when the model has it, and not with the next power of two."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(16):
            if step == 10:
                model[1].weight = nn.Parameter(torch.ones(2, 2))
                if is_told:
                    optimizer.add_param_group({"params": [model[1].weight]})
            model.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    found = [(each.step, known) for each in ingest.events("optimizers") if (known := read(Optimizers, each.data))]
    replaced = [(step, each.replaced, each.left_out) for step, each in found if each.replaced]
    assert replaced == ([] if is_told else [(10, ("1.weight",), ("1.weight",))])
    assert [(step, each.renewed) for step, each in found if each.renewed] == ([(10, ("1.weight",))] if is_told else [])
    assert not any(each.unreached for _, each in found), "one of that name has had gradients"


def test_all_parameters_are_others(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(8):
            if step == 5:
                model.weight, model.bias = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert reported(ingest)[-1].replaced == ("weight", "bias")


def test_what_the_groups_are_set_to(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.02)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.01)
    train(ingest, model, [optimizer], 4)
    (known,) = reported(ingest)
    assert (known.initial_lr, known.weight_decay) == (0.1, 0.02)


@pytest.mark.parametrize(
    ("kind", "decay", "part"),
    [
        (torch.optim.SGD, 20.0, 2.0),
        (torch.optim.AdamW, 20.0, 2.0),
        (torch.optim.AdamW, 1.0, 0.1),
        (torch.optim.AdamW, 0.5, 0.0),
        (torch.optim.AdamW, -0.5, -0.05),
        (torch.optim.Adam, 20.0, 0.0),
    ],
)
def test_a_decay_that_takes_much_of_each_weight(ingest: IngestDouble, kind: Any, decay: float, part: float) -> None:
    """It is set in the middle, and seen in that very step; Adam's own is a part of the gradient."""
    model = nn.Linear(2, 2)
    optimizer = kind([{"params": [model.bias]}, {"params": [model.weight]}], lr=0.1, weight_decay=0.01)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(40):
            if step == 21:
                optimizer.param_groups[1]["weight_decay"] = decay
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    every = [(each.step, each.data) for each in ingest.events("optimizers")]
    found = [(step, data["decay_part"], data["decay_of"]) for step, data in every if data["decay_part"]]
    assert found == [(21, part, "weight")] * (part != 0)


def test_a_rate_that_ends_below_0_by_rounding(ingest: IngestDouble) -> None:
    """As LinearLR's does: the decay is as it was."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.9, end_factor=0.0, total_iters=30)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(36):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            schedule.step()
    assert optimizer.param_groups[0]["lr"] < 0
    assert not any(each.data["decay_part"] for each in ingest.events("optimizers"))


def test_a_decay_of_an_optimizer_that_has_taken_no_step(ingest: IngestDouble) -> None:
    """It is for a later stage."""
    model = nn.Linear(2, 2)
    both = [torch.optim.AdamW(model.parameters(), 0.1, weight_decay=decay) for decay in (0.01, 5.0)]
    with rangewatch.attach(model, both, url=ingest.url, step_ends="any"):
        for step in range(20):
            model(torch.ones(1, 2)).sum().backward()
            both[step >= 12].step()
            both[0].zero_grad()
    assert [each.step for each in ingest.events("optimizers") if each.data["decay_part"]] == [12]


@pytest.mark.parametrize(("other", "initial"), [(0.1, 0.1), (0.01, 0.0)])
def test_groups_of_one_rate_have_an_initial_rate(ingest: IngestDouble, other: float, initial: float) -> None:
    """As those with and without weight decay have; that of a head with a rate of its own is none of all."""
    model = nn.Linear(2, 2)
    groups = [{"params": [model.weight], "weight_decay": 0.02}, {"params": [model.bias], "lr": other}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.0)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.01)
    train(ingest, model, [optimizer], 4)
    (known,) = reported(ingest)
    assert (known.initial_lr, known.weight_decay) == (initial, 0.02)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_used", [False, True])
def test_parameters_of_the_optimizer_that_are_no_part_of_the_model(
    ingest: IngestDouble, is_late: bool, is_used: bool
) -> None:
    """As where weight normalisation takes the place of a weight; a criterion of its own gets gradients."""
    model, own = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), own], lr=0.01)
    if is_late:
        torch.nn.utils.parametrizations.weight_norm(model[0])
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(8):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 2)).sum()
            (loss * own if is_used else loss).backward()
            optimizer.step()
    newest = reported(ingest)[-1]
    assert newest.left_out_count == 2 * is_late
    assert newest.orphan_count == (1 + (not is_used)) * is_late
