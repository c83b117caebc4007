"""What a rank says of what must hold along the mesh: its batch, dropout, sums of gradients, tied weights, step count.

Everything is real but that there is another rank. Four of them are in bench/mesh.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

import rangewatch
from rangewatch.recording.parallel.axes import Axes, Axis
from rangewatch.recording.parallel.gradient_sums import copies_of
from rangewatch.recording.parallel.placements import Layout, Placed
from rangewatch.recording.parallel.schedule import IN_A_ROW, Schedule
from rangewatch.recording.parallel.tied_weights import chosen
from rangewatch.wire.events import Optimizers, read
from tests.agent.ingest_double import IngestDouble


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.dropout, self.head = nn.Embedding(10, 4), nn.Dropout(0.5), nn.Linear(4, 10, bias=False)

    def forward(self, tokens: Tensor, scale: Tensor | None = None) -> Tensor:
        values = self.embed(tokens) if not tokens.is_floating_point() else tokens
        return self.head(self.dropout(values)) * (1.0 if scale is None else scale)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Layout, "world_size", 2)


@contextlib.contextmanager
def watched(ingest: IngestDouble, **options: Any) -> Iterator[tuple[Model, torch.optim.Optimizer, Any]]:
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    usual = {"url": ingest.url, "replica_every": 1, "replicated": True}
    with rangewatch.attach(model, optimizer, **(usual | options)) as handle:
        yield model, optimizer, handle
        assert not handle.stats()["faults"]


def tokens(step: int) -> Tensor:
    return torch.arange(6).view(2, 3) + step % 3


def train(model: Model, optimizer: torch.optim.Optimizer, steps: int, clip: float | None = None) -> list[float]:
    norms = []
    for step in range(steps):
        model(tokens(step)).square().mean().backward()
        if clip is not None:
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
        optimizer.zero_grad()
    return norms


def test_some_steps_in_a_row() -> None:
    due = [step for step in range(250) if Schedule(100).is_due(step)]
    assert due == [0, 1, 2, 100, 101, 102, 200, 201, 202] and IN_A_ROW == 3
    assert all(map(Schedule(1).is_due, range(9)))


def test_the_batch_at_its_turn(ingest: IngestDouble, others: None) -> None:
    with watched(ingest, replica_every=10) as (model, optimizer, _):
        train(model, optimizer, 14)
    found = dict(ingest.series("token_checksum"))
    assert sorted(found) == [0, 1, 2, 10, 11, 12]
    assert found[0] == found[12] and len({found[0], found[1], found[2]}) == 3, "by the tokens alone"
    assert not ingest.series("input_checksum")


def test_inputs_by_keyword_and_floating_ones(ingest: IngestDouble, others: None) -> None:
    with watched(ingest) as (model, optimizer, _):
        for tokens_of in (torch.ones(2, 4), torch.ones(2, 4), torch.zeros(2, 4)):
            model(tokens=tokens_of, scale=torch.ones(1)).sum().backward()
            optimizer.step()
    found = dict(ingest.series("input_checksum"))
    assert found[0] == found[1] != found[2]


def test_what_another_stage_made_is_no_batch(ingest: IngestDouble, others: None) -> None:
    with watched(ingest) as (model, optimizer, _):
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        optimizer.step()
    assert not ingest.series("input_checksum") and not ingest.series("token_checksum")


def test_rows_that_the_loop_names_before_or_after(ingest: IngestDouble, others: None) -> None:
    with watched(ingest) as (model, optimizer, handle):
        for ids in ([1, 2], [1, 2], [2, 1], ["a"]):
            model(tokens(0)).sum().backward()
            optimizer.step()
            handle.batch(ids=ids)
    found = dict(ingest.series("rows_checksum"))
    assert sorted(found) == [0, 1, 2, 3] and found[0] == found[1] and len(set(found.values())) == 3


def test_alone_a_rank_says_nothing(ingest: IngestDouble) -> None:
    with watched(ingest) as (model, optimizer, handle):
        handle.batch(ids=[1])
        train(model, optimizer, 3, clip=1.0)
    names = ("token_checksum", "rows_checksum", "generator_checksum", "grad_sum_sq", "tied_checksum")
    assert [name for name in names if ingest.series(name)] == []


def test_dropout_of_the_same_state_makes_the_same(ingest: IngestDouble, others: None) -> None:
    with watched(ingest) as (model, optimizer, _):
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert not model.dropout._forward_hooks or all(
            "dropout" not in str(each) for each in model.dropout._forward_hooks
        )
    for name in ("generator_checksum", "dropout_output_checksum"):
        found = dict(ingest.series(name))
        assert found[0] == found[1] != found[2], name
    assert len(set(dict(ingest.series("dropout_input_checksum")).values())) == 1


def test_dropout_that_is_off_is_not_read(ingest: IngestDouble, others: None) -> None:
    with watched(ingest) as (model, optimizer, _):
        model.eval()
        train(model, optimizer, 2)
    assert not ingest.series("generator_checksum")


def test_sums_at_the_clip_are_those_before_it(ingest: IngestDouble, others: None) -> None:
    """Two ranks hold the same: of each half counts."""
    with watched(ingest) as (model, optimizer, _):
        norms = train(model, optimizer, 4, clip=1e-3)
    sums, local = (dict(ingest.series(name)) for name in ("grad_sum_sq", "grad_local_sum_sq"))
    for step, norm in enumerate(norms):
        assert local[step] == pytest.approx(norm**2, rel=1e-5) and sums[step] == pytest.approx(local[step] / 2)
    assert dict(ingest.series("grad_zero_count"))[0] > 0, "rows of the embedding that no token had"


@pytest.mark.parametrize("kind", ["maximum", "some"])
def test_another_norm_or_one_of_some_is_not_summed(ingest: IngestDouble, others: None, kind: str) -> None:
    with watched(ingest) as (model, optimizer, _):
        model(tokens(0)).sum().backward()
        if kind == "maximum":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=float("inf"))
        else:
            torch.nn.utils.clip_grad_norm_([model.head.weight], 1.0)
        optimizer.step()
    assert not ingest.series("grad_sum_sq")


def test_a_norm_and_a_clip_apart_and_all_is_put_back(ingest: IngestDouble, others: None) -> None:
    own = torch.nn.utils.clip_grads_with_norm_, torch.nn.utils.get_total_norm, clip_grad._clip_grads_with_norm_
    with watched(ingest) as (model, optimizer, _):
        model(tokens(0)).sum().backward()
        norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
        before = model.head.weight.grad.clone()
        torch.nn.utils.clip_grads_with_norm_(iter(list(model.parameters())), 1e-3, norm)  # gives them once
        assert not torch.equal(before, model.head.weight.grad)
        optimizer.step()
    assert dict(ingest.series("grad_local_sum_sq"))[0] == pytest.approx(float(norm) ** 2, rel=1e-5)
    now = torch.nn.utils.clip_grads_with_norm_, torch.nn.utils.get_total_norm, clip_grad._clip_grads_with_norm_
    assert now == own


def test_the_optimizers_count(ingest: IngestDouble, others: None) -> None:
    with watched(ingest) as (model, optimizer, _):
        train(model, optimizer, 3)
    assert dict(ingest.series("optimizer_steps")) == {0: 1.0, 1: 2.0, 2: 3.0}


def test_the_rate_of_each_parameter_group(ingest: IngestDouble, others: None) -> None:
    model = nn.Linear(2, 1)
    groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias], "lr": 0.25, "name": "biases"}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    with rangewatch.attach(model, optimizer, url=ingest.url, replica_every=1):
        for _ in range(3):
            model(torch.randn(3, 2)).sum().backward()
            optimizer.step()
    assert dict(ingest.series("lr_group_0")) == {0: 0.5, 1: 0.5, 2: 0.5}
    assert dict(ingest.series("lr_group_1")) == {0: 0.25, 1: 0.25, 2: 0.25}
    (said,) = (read(Optimizers, each.data) for each in ingest.events("optimizers"))
    assert said is not None and said.groups == ("weight", "biases")


def test_one_parameter_group_has_no_rate_of_its_own(ingest: IngestDouble, others: None) -> None:
    with watched(ingest) as (model, optimizer, _):
        train(model, optimizer, 2)
    assert not ingest.series("lr_group_0") and ingest.series("lr")


def axes_of(**sizes: tuple[int, ...]) -> Axes:
    axes = Axes(0)
    for name, ranks in sizes.items():
        axes.axes[name] = Axis(name, ranks, 0, "declared")
    return axes


PARAMETER: Any = nn.Parameter(torch.zeros(2))
GRID = {"pp": (0, 4), "dp": (0, 2), "tp": (0, 1)}


@pytest.mark.parametrize(
    ("placement", "extra", "copies"),
    [
        ({"dp": "replicate", "tp": "replicate"}, {}, 4),
        ({"dp": "replicate", "tp": "shard(0)"}, {}, 2),
        ({"dp": "shard(0)", "tp": "shard(1)"}, {}, 1),
        ({"dp": "replicate"}, {}, None),
        ({"dp": "replicate", "tp": "partial"}, {}, None),
        ({"all ranks": "replicate"}, {}, 8),
        ({"both": "replicate"}, {"both": (0, 1, 2, 3)}, 4),
        ({"both": "replicate", "dp": "replicate", "tp": "replicate"}, {"both": (0, 1, 2, 3)}, 4),
        ({"dp": "replicate", "tp": "shard(0)"}, {"both": (0, 1, 2, 3)}, 2),
    ],
)
def test_how_many_ranks_hold_the_same(placement: dict[str, str], extra: dict[str, Any], copies: int | None) -> None:
    placed = Placed("a", PARAMETER, placement, (), None)
    assert copies_of(placed, axes_of(**GRID, **extra), 8) == copies


def test_which_weight_may_be_tied() -> None:
    def name(model: nn.Module, *, is_first: bool = False, is_last: bool = False) -> tuple[str, bool] | None:
        found = chosen(model, is_first=is_first, is_last=is_last)
        return None if found is None else found[::2]

    model = Model()
    assert name(model, is_first=True) == ("embed.weight", False)
    last = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 10))
    assert name(last, is_last=True) == ("1.weight", False)
    assert name(last, is_first=True) is None, "stages of one shape that were built after one seed have the same bits"
    assert name(last) is None and name(model) is None
    last[0].weight.shared_embedding = True
    assert name(last) == ("0.weight", True)
    assert name(nn.LayerNorm(3), is_last=True) is None
