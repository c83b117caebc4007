"""The learning rate of a loop that logs none is read from the optimizers' parameter groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.recording.logged_values import RATE_NAMES
from rangewatch_server.rules.loss.series import RATES
from tests.agent.ingest_double import IngestDouble

STEPS = 4


def train(
    model: nn.Module, *optimizers: torch.optim.Optimizer, after: Callable[[int], None] = lambda step: None
) -> None:
    for step in range(STEPS):
        model(torch.randn(3, 2)).pow(2).mean().backward()
        for each in optimizers:
            each.step()
        after(step)


def test_the_names_are_those_that_the_rules_look_for() -> None:
    assert frozenset(RATES) == RATE_NAMES


def test_each_step_has_the_rate_that_it_was_taken_with(ingest: IngestDouble) -> None:
    """A scheduler steps behind the optimizer: its rate is the next step's."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        train(model, optimizer, after=lambda step: scheduler.step())
    assert ingest.series("lr") == pytest.approx({step: 0.1 * 0.5**step for step in range(STEPS)})


def test_of_several_groups_and_optimizers_the_largest_counts(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))
    groups = [{"params": [model[0].weight], "lr": 0.1}, {"params": [model[0].bias], "lr": -3.0}]
    first, second = torch.optim.SGD(groups), torch.optim.SGD(model[1].parameters(), lr=torch.tensor(0.5))
    with rangewatch.attach(model, [first, second], url=ingest.url):
        train(model, first, second)
    assert ingest.series("lr") == dict.fromkeys(range(STEPS), -3.0)


def test_of_optimizers_that_go_on_taking_turns_none_rests(ingest: IngestDouble) -> None:
    """As those of two tasks, step by step: nothing is read and sent anew each time."""
    model = nn.Linear(2, 2)
    both = [torch.optim.AdamW(model.parameters(), rate, weight_decay=rate) for rate in (0.5, 0.001)]
    with rangewatch.attach(model, both, url=ingest.url):
        for step in range(60):
            model(torch.ones(1, 2)).sum().backward()
            both[step % 2].step()
            both[0].zero_grad()
    assert [rate for step, rate in ingest.series("lr").items() if step >= 30] == [0.5] * 30
    assert max(each.step for each in ingest.events("optimizers")) < 32


def test_of_the_optimizers_of_two_stages_the_one_in_use_counts(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 1)
    first, second = torch.optim.SGD(model.parameters(), lr=0.5), torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, [first, second], url=ingest.url):
        train(model, first)
        train(model, second)
    assert ingest.series("lr") == {step: 0.5 if step < STEPS else 0.1 for step in range(2 * STEPS)}
    of_groups = [set(ingest.series(name).values()) for name in ("lr_group_0", "lr_group_1")]
    assert of_groups == [{0.5}, {0.1}]


@pytest.mark.parametrize("name", sorted(RATES))
def test_what_the_loop_logs_stands_alone(ingest: IngestDouble, name: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
        train(model, optimizer, after=lambda step: handle.log(**{name: 7.0}))
    assert ingest.series(name) == dict.fromkeys(range(STEPS), 7.0)
    assert name == "lr" or not ingest.series("lr")


def test_groups_are_recorded_where_a_rate_of_0_is_set(ingest: IngestDouble) -> None:
    """As where layers are unfrozen; a warm-up of all groups from 0 is none."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([{"params": [model.weight], "lr": 0.0}, {"params": [model.bias], "lr": 0.0}])

    def change(step: int) -> None:
        if step < 2:
            optimizer.param_groups[step == 0]["lr"] = 0.1

    with rangewatch.attach(model, optimizer, url=ingest.url):
        train(model, optimizer, after=change)
    trunk = ingest.series("lr_group_0")
    assert set(trunk) == {0, 1, 2, 3, 7, 15} & set(range(STEPS))  # 2 is none of 1, 2, 4, 8 and so on less 1
    assert [trunk[1], trunk[2]] == pytest.approx([0.0, 0.1])


@pytest.mark.parametrize("both", [False, True])
def test_groups_are_recorded_where_the_rate_of_one_alone_changes(ingest: IngestDouble, both: bool) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.01}])

    def change(step: int) -> None:
        for group in optimizer.param_groups[not both :]:
            group["lr"] *= 20.0 if step == 1 else 1.0

    with rangewatch.attach(model, optimizer, url=ingest.url):
        train(model, optimizer, after=change)
    groups = [ingest.series(name) for name in ("lr_group_0", "lr_group_1")]
    regular = {0, 1, 3, 7, 15} & set(range(STEPS))  # after 1, 2, 4, 8 and so on
    assert [set(each) for each in groups] == [regular | (set() if both else {1, 2})] * 2
    assert [groups[0][1], groups[1][1]] == pytest.approx([0.1, 0.01])
    assert both or [groups[0][2], groups[1][2]] == pytest.approx([0.1, 0.2])
