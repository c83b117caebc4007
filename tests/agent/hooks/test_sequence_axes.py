"""Recurrent and attention modules that run along the rows of the batch: event `sequence_axes`, by shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rangewatch
from rangewatch.hooks.sequence_axes import MOST_UNKNOWN
from rangewatch.wire.events import SequenceAxes, read
from tests.agent.ingest_double import IngestDouble

ROWS, TIME, WIDTH, CLASSES = 8, 6, 16, 5

Forward = Callable[[nn.ModuleDict, Tensor], Tensor]


class Net(nn.Module):
    """Its parts, and what it does with them."""

    def __init__(self, forward: Forward, **parts: nn.Module) -> None:
        super().__init__()
        self.parts, self._forward = nn.ModuleDict({**parts, "head": nn.Linear(WIDTH, CLASSES)}), forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self.parts, x)


def of_rows(out: Tensor) -> Tensor:
    """A cross entropy with a class for each row."""
    return F.cross_entropy(out, torch.arange(len(out)) % CLASSES)


def of_places(out: Tensor) -> Tensor:
    return of_rows(out.flatten(0, 1))


def reports(
    ingest: IngestDouble, model: nn.Module, loss: Callable[[Tensor], Tensor] = of_rows, *,
    shape: Callable[[int], tuple[int, ...]] = lambda step: (ROWS, TIME, WIDTH), steps: int = 12,
) -> list[SequenceAxes]:  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with rangewatch.attach(model, optimizer, url=ingest.url, run="axes"):
        for step in range(steps):
            optimizer.zero_grad()
            loss(model(torch.randn(shape(step)))).backward()
            optimizer.step()
    known = [read(SequenceAxes, each.data) for each in ingest.events("sequence_axes")]
    assert None not in known
    return [each for each in known if each is not None]


def varied(step: int) -> tuple[int, ...]:
    """The last batch of an epoch has fewer rows."""
    return (5 if step % 6 == 5 else ROWS), TIME, WIDTH


def last(parts: nn.ModuleDict, x: Tensor) -> Tensor:
    return parts["head"](parts["core"](x)[0][:, -1])


def attends(parts: nn.ModuleDict, x: Tensor) -> Tensor:
    return parts["head"](parts["core"](x, x, x)[0].mean(1))


def encodes(parts: nn.ModuleDict, x: Tensor) -> Tensor:
    return parts["head"](parts["core"](x).mean(1))


def layers(*, batch_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.mark.parametrize(
    ("core", "forward", "fqn", "name", "alike"),
    [
        (nn.LSTM(WIDTH, WIDTH, 2), last, "parts.core", "LSTM", 1),
        (nn.GRU(WIDTH, WIDTH), last, "parts.core", "GRU", 1),
        (nn.RNN(WIDTH, WIDTH), last, "parts.core", "RNN", 1),
        (nn.MultiheadAttention(WIDTH, 2), attends, "parts.core", "MultiheadAttention", 1),
        (layers(batch_first=False), encodes, "parts.core.layers.0", "TransformerEncoderLayer", 2),
    ],
    ids=["lstm", "gru", "rnn", "attention", "encoder"],
)
def test_batch_first_was_forgotten(
    ingest: IngestDouble, core: nn.Module, forward: Forward, fqn: str, name: str, alike: int
) -> None:
    (known,) = reports(ingest, Net(forward, core=core))
    given = (ROWS, TIME, WIDTH)
    assert known == SequenceAxes(fqn, name, False, given, given, ROWS, 4, False, alike, 0)
    assert [each.step for each in ingest.events("sequence_axes")] == [0]


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: 0.5 * F.mse_loss(out, torch.zeros(len(out), CLASSES)),
        lambda out: ((out[:, 0] - 1.0) ** 2).mean(),
        lambda out: F.binary_cross_entropy_with_logits(out[:, 0], torch.ones(len(out))),
        lambda out: of_rows(out) + 0.1 * out.pow(2).sum(1).mean(),
        lambda out: F.cross_entropy(out, torch.rand(len(out), CLASSES).softmax(1)),
    ],
    ids=["squares", "by hand", "yes or no", "a sum", "shares of classes"],
)
def test_by_other_losses(ingest: IngestDouble, loss: Callable[[Tensor], Tensor]) -> None:
    (known,) = reports(ingest, Net(last, core=nn.LSTM(WIDTH, WIDTH)), loss)
    assert (known.rows, known.fqn) == (ROWS, "parts.core")


def test_batches_of_another_size_make_it_surer(ingest: IngestDouble) -> None:
    known = reports(ingest, Net(last, core=nn.LSTM(WIDTH, WIDTH)), shape=varied, steps=24)
    assert [(each.steps, each.is_varied) for each in known] == [(4, False), (6, True)]


@pytest.mark.parametrize("given_time_first", [True, False])
def test_the_other_way_round(ingest: IngestDouble, given_time_first: bool) -> None:
    def forward(parts: nn.ModuleDict, x: Tensor) -> Tensor:
        x = x if given_time_first else x.transpose(0, 1)
        return parts["head"](parts["core"](x)[0][-1])

    shape = (TIME, ROWS, WIDTH) if given_time_first else (ROWS, TIME, WIDTH)
    core = nn.GRU(WIDTH, WIDTH, batch_first=True)
    (known,) = reports(ingest, Net(forward, core=core), shape=lambda step: shape)
    assert (known.batch_first, known.shape, known.rows) == (True, (TIME, ROWS, WIDTH), ROWS)


def test_attention_after_a_recurrent_net_that_is_right(ingest: IngestDouble) -> None:
    def forward(parts: nn.ModuleDict, x: Tensor) -> Tensor:
        x, _ = parts["rnn"](x)
        return attends(parts, x)

    model = Net(forward, rnn=nn.LSTM(WIDTH, WIDTH, batch_first=True), core=nn.MultiheadAttention(WIDTH, 2))
    (known,) = reports(ingest, model)
    assert (known.fqn, known.right) == ("parts.core", 0)


def test_attention_between_rows_beside_that_between_places(ingest: IngestDouble) -> None:
    def forward(parts: nn.ModuleDict, x: Tensor) -> Tensor:
        x = x + parts["columns"](x, x, x)[0]
        return attends(parts, x)

    columns = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    (known,) = reports(ingest, Net(forward, columns=columns, core=nn.MultiheadAttention(WIDTH, 2)))
    assert (known.fqn, known.right) == ("parts.core", 1)


def patches(parts: nn.ModuleDict, x: Tensor) -> Tensor:
    """Of a picture, with a place for its class before them."""
    x = x.flatten(2).transpose(1, 2).reshape(len(x), -1, WIDTH)
    x = torch.cat([x.new_zeros(len(x), 1, WIDTH), x], 1)
    return parts["head"](parts["core"](x)[:, 0])


def test_patches_of_a_picture(ingest: IngestDouble) -> None:
    model = Net(patches, core=layers(batch_first=False))
    (known,) = reports(ingest, model, shape=lambda step: (ROWS, 1, 16, 16))
    assert known.shape == (ROWS, 17, WIDTH)


def time_first(parts: nn.ModuleDict, x: Tensor) -> Tensor:
    return parts["head"](parts["core"](x.transpose(0, 1))[0][-1])


def every_place(parts: nn.ModuleDict, x: Tensor) -> Tensor:
    return parts["head"](parts["core"](x)[0])


def lines(parts: nn.ModuleDict, x: Tensor) -> Tensor:
    """Along the lines of a map that has as many as the batch has rows: (height, batch * width, features)."""
    rows, features, height, width = x.shape
    x = x.permute(2, 0, 3, 1).reshape(height, rows * width, features)
    return parts["head"](parts["core"](x)[0].reshape(height, rows, width, features).mean((0, 2)))


def sentences(parts: nn.ModuleDict, x: Tensor) -> Tensor:
    """Those of a document that are not empty, with as many words each as there are documents."""
    n = int(torch.randint(10, 20, ()))
    out = parts["core"](x.reshape(-1, ROWS, WIDTH)[:n])[1]
    return parts["head"](x.mean((1, 2)) + out.mean((0, 1)))


def unbatched(parts: nn.ModuleDict, x: Tensor) -> Tensor:
    return parts["head"](parts["core"](x[:, 0])[0])


@pytest.mark.parametrize(
    ("forward", "batch_first", "loss", "shape"),
    [
        (last, True, of_rows, (ROWS, TIME, WIDTH)),
        (time_first, False, of_rows, (ROWS, TIME, WIDTH)),
        (every_place, False, of_places, (TIME, ROWS, WIDTH)),
        (every_place, True, of_places, (ROWS, TIME, WIDTH)),
        (every_place, False, lambda out: F.mse_loss(out, torch.zeros(TIME, ROWS, CLASSES)), (TIME, ROWS, WIDTH)),
        (every_place, False, lambda out: (out[..., 0] ** 2).mean(1).mean(), (TIME, ROWS, WIDTH)),
        (lambda parts, x: every_place(parts, x)[:, 0], False, of_rows, (ROWS, 1, WIDTH)),
        (last, False, of_rows, (ROWS, ROWS, WIDTH)),
        (unbatched, False, of_rows, (ROWS, TIME, WIDTH)),
        (lines, False, of_rows, (ROWS, WIDTH, ROWS, 4)),
        (sentences, True, of_rows, (ROWS, 3, ROWS, WIDTH)),
        (last, False, lambda out: of_rows(out[:2]), (2, TIME, WIDTH)),
    ],
    ids=[
        "batch first", "transposed", "a language model", "tags", "values of each place", "their mean by place",
        "one recording", "of two equal sizes", "without a batch", "lines of a map", "sentences", "two rows",
    ],
)  # fmt: skip
def test_healthy(
    ingest: IngestDouble, forward: Forward, batch_first: bool, loss: Callable[[Tensor], Tensor], shape: Any
) -> None:
    model = Net(forward, core=nn.GRU(WIDTH, WIDTH, batch_first=batch_first))
    assert reports(ingest, model, loss, shape=lambda step: shape) == []


def test_chance_that_ends_is_taken_back(ingest: IngestDouble) -> None:
    """A sequence that is as long as the batch, until a batch is shorter."""

    def forward(parts: nn.ModuleDict, x: Tensor) -> Tensor:
        out = parts["core"](x.new_zeros(ROWS, TIME, WIDTH))[0]
        return parts["head"](x.mean(1) + out.mean((0, 1)))

    known = reports(ingest, Net(forward, core=nn.GRU(WIDTH, WIDTH)), shape=varied)
    assert [each.steps for each in known] == [4, 0]


def test_a_forward_of_the_users_own_is_not_looked_at(ingest: IngestDouble) -> None:
    class Own(nn.GRU):
        def forward(self, x: Tensor, hx: Any = None) -> Any:
            out, state = super().forward(x.transpose(0, 1), hx)
            return out.transpose(0, 1), state

    assert reports(ingest, Net(last, core=Own(WIDTH, WIDTH))) == []


def test_it_ends(ingest: IngestDouble) -> None:
    """Of a loss that does not say its rows nothing is read any more."""
    model = Net(every_place, core=nn.GRU(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with rangewatch.attach(model, optimizer, url=ingest.url, run="axes") as handle:
        agent = handle._agent
        listening = []
        for _ in range(MOST_UNKNOWN + 4):
            optimizer.zero_grad()
            (model(torch.randn(ROWS, TIME, WIDTH)) ** 2).mean().backward()
            optimizer.step()
            reads = [each for each in agent.of_inputs if type(each).__name__ == "SequenceAxesReads"]
            listening.append(len(reads))
    assert listening[0] == 1 and listening[-1] == 0
