"""Names of one parameter, and when they stand for several."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.recording.tensor_names import parameter_names
from rangewatch.wire.events import Optimizers, UntiedWeights, read
from tests.agent.ingest_double import IngestDouble


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.words(tokens))


def renewed(model: Words) -> None:
    model.head.weight = nn.Parameter(torch.randn(8, 4))


def replaced(model: Words) -> None:
    model.head = nn.Linear(4, 8, bias=False)


def grown(model: Words) -> None:
    model.words.weight = nn.Parameter(torch.randn(10, 4))
    model.head.weight = model.words.weight


def removed(model: Words) -> None:
    model.head = nn.Linear(4, 8)
    del model.words.weight
    model.words.register_parameter("weight", model.head.weight)


def loaded(model: Words) -> None:
    """Torch makes a parameter of each name, of one memory."""
    model.load_state_dict(copy.deepcopy(model).state_dict(), assign=True)


def kept(model: Words) -> None:
    model.words.weight.data = torch.randn(8, 4)
    model.scale = nn.Parameter(torch.ones(()), requires_grad=False)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (renewed, ("words.weight", "head.weight")), (replaced, ("words.weight", "head.weight")),
        (grown, None), (removed, None), (kept, None), (loaded, None),
    ],
)  # fmt: skip
def test_what_was_tied(ingest: IngestDouble, change: Callable[[Words], None], names: tuple[str, ...] | None) -> None:
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, run="tied"):
        for step in range(12):
            if step == 6:
                change(model)
                optimizer.param_groups[0]["params"] = list(model.parameters())
            optimizer.zero_grad()
            model(torch.arange(8)).square().mean().backward()
            optimizer.step()
    found = [(each.step, read(UntiedWeights, each.data)) for each in ingest.events("untied_weights")]
    assert found == ([] if names is None else [(6, UntiedWeights(names))])
    newest = [read(Optimizers, each.data) for each in ingest.events("optimizers")][-1]
    assert newest.unreached == (), "what is new has had its gradient by now"


def test_a_number_in_the_place_of_weights_ties_none() -> None:
    model, empty = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)), torch.zeros(1)
    for each in model.parameters():
        each.data = empty.expand(4, 4)  # until they are loaded
    assert parameter_names(model) == [["0.weight"], ["1.weight"]]


def test_a_copy_is_tied_as_well() -> None:
    assert parameter_names(copy.deepcopy(Words())) == [["words.weight", "head.weight"]]
