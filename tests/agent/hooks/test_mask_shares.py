"""How much the masks of a step leave: series `mask_share` and `attention_share`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rangewatch
from rangewatch.hooks import mask_shares
from tests.agent.ingest_double import IngestDouble

ROWS, PLACES, WIDTH = 4, 8, 16
LEFT = torch.arange(PLACES) < torch.tensor([[8], [6], [4], [2]])
"""(4, 8): 20 of 32 places are none of padding."""
SHARE = 20 / 32


class Attends(nn.Module):
    """By torch's own function, or by `nn.MultiheadAttention`."""

    def __init__(self, *, by_module: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True) if by_module else None

    def forward(self, x: Tensor, *_: Any, **masks: Any) -> Tensor:
        h = self.layer(x)
        if self.attention is not None:
            return self.attention(h, h, h, **masks)[0].mean()
        heads = h[:, None]
        return F.scaled_dot_product_attention(heads, heads, heads, **masks).mean()


class Counts(nn.Module):
    """Takes nothing but 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(PLACES, 1)

    def forward(self, board: Tensor) -> Tensor:
        return self.layer(board.float()).mean()


def shares(ingest: IngestDouble, model: nn.Module, name: str, *given: Any, **masks: Any) -> set[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, run="masks", full_every=1000):
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(ROWS, PLACES, WIDTH), *given, **masks).backward()
            with torch.no_grad():
                model(torch.randn(ROWS, PLACES, WIDTH))  # an evaluation is not counted
            optimizer.step()
    values = ingest.series(name)
    assert set(values) in ({0, 1, 2, 3}, set())
    return set(values.values())


@pytest.mark.parametrize(
    ("mask", "share"),
    [
        (LEFT[:, None, None, :], SHARE),
        (LEFT[:, None, None, :].expand(-1, 1, PLACES, -1), SHARE),
        (torch.zeros(ROWS, 1, 1, PLACES).masked_fill(~LEFT[:, None, None, :], -1e9), SHARE),
        (-torch.arange(8.0).expand(PLACES, -1), 1.0),
        (None, 1.0),
    ],
    ids=["booleans", "expanded", "added", "a bias by distance", "none"],
)
def test_of_an_attention(ingest: IngestDouble, mask: Tensor | None, share: float) -> None:
    assert shares(ingest, Attends(), "attention_share", attn_mask=mask) == {share}


def test_of_a_causal_one(ingest: IngestDouble) -> None:
    assert shares(ingest, Attends(), "attention_share", is_causal=True) == {0.5}


def test_of_a_module_of_torch_whose_mask_is_turned_around(ingest: IngestDouble) -> None:
    """True leaves out there."""
    model = Attends(by_module=True)
    assert shares(ingest, model, "attention_share", key_padding_mask=~LEFT, need_weights=False) == {SHARE}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_torchscript_compiles_attention_all_the_same(ingest: IngestDouble) -> None:
    model = Attends()
    with rangewatch.attach(model, torch.optim.SGD(model.parameters(), 0.1), url=ingest.url, run="masks"):
        scripted = torch.jit.script(nn.MultiheadAttention(WIDTH, 2, batch_first=True))
        x = torch.randn(ROWS, PLACES, WIDTH)
        assert scripted(x, x, x)[0].shape == x.shape


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ((LEFT,), {SHARE}),
        ((torch.arange(32).view(4, 8), LEFT.long()), {SHARE}),
        ((torch.arange(32).view(4, 8),), set[float]()),
        ((torch.tensor([0, 1, 1, 0]),), set[float]()),
        ((LEFT.long(), ~LEFT), {1 - SHARE}),
        ((torch.ones(1, 1, dtype=torch.int64).expand(4, 8),), {1.0}),
        ((torch.zeros(0, 8, dtype=torch.int64),), set[float]()),
    ],
    ids=[
        "booleans",
        "whole numbers behind tokens",
        "tokens alone",
        "classes of rows",
        "booleans first",
        "one",
        "no rows",
    ],
)
def test_of_what_the_model_is_given(ingest: IngestDouble, given: tuple[Tensor, ...], share: set[float]) -> None:
    assert shares(ingest, Attends(), "mask_share", *given) == share


@pytest.mark.parametrize("given", [LEFT, LEFT.long()], ids=["booleans", "whole numbers"])
def test_what_is_given_alone_masks_nothing(ingest: IngestDouble, given: Tensor) -> None:
    """A board, or a set of words: it is what the model learns from."""
    model = Counts()
    with rangewatch.attach(model, optimizer := torch.optim.SGD(model.parameters(), 0.1), url=ingest.url, run="board"):
        for _ in range(3):
            model(given).backward()
            optimizer.step()
    assert ingest.series("mask_share") == {} and set(ingest.series("loss")) == {0, 1, 2}


def test_on_a_device_each_fourth_step(ingest: IngestDouble) -> None:
    """Whether whole numbers are a mask is not known there without waiting."""
    model = Attends()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, run="masks", full_every=1000, backend="device"):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(ROWS, PLACES, WIDTH), torch.arange(32).view(4, 8), LEFT.long()).backward()
            optimizer.step()
    assert ingest.series("mask_share") == {0: SHARE, 4: SHARE}


ADDED = torch.zeros(ROWS, PLACES).masked_fill(~LEFT, float("-inf"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (ADDED, {SHARE}),
        (ADDED.clamp(min=-1e9)[:, None], {SHARE}),
        (LEFT.float(), set()),  # ones and zeros may be what is learned from
        (torch.zeros(ROWS, PLACES), set()),
        (torch.randn(ROWS, PLACES), set()),
    ],
    ids=["-inf", "-1e9", "ones", "zeros", "values"],
)
def test_a_matrix_that_is_added_as_a_mask(ingest: IngestDouble, given: Tensor, expected: set[float]) -> None:
    assert shares(ingest, Attends(), "added_mask_share", given) == expected


def test_one_that_masks_nothing_any_more(ingest: IngestDouble) -> None:
    """As where ones and zeros are added in its place."""
    model = Attends()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(6):
            model(torch.randn(ROWS, PLACES, WIDTH), ADDED if step < 4 else LEFT.float()).backward()
            optimizer.step()
    assert list(ingest.series("added_mask_share").values()) == [SHARE] * 4 + [1.0] * 2


def test_values_that_are_given_in_its_place_are_no_mask(ingest: IngestDouble) -> None:
    """As where features stand there in steps without one; or no row is left."""
    model = Attends()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for given in (ADDED, torch.randn(ROWS, PLACES), ADDED[:0], ADDED.bfloat16()):
            model(torch.randn(ROWS, PLACES, WIDTH), given).backward()
            optimizer.step()
    assert ingest.series("added_mask_share") == {0: SHARE, 3: SHARE}


def test_of_booleans_beside_it_nothing_is_added(ingest: IngestDouble) -> None:
    assert shares(ingest, Attends(), "added_mask_share", ADDED, LEFT) == set()


class Reads(nn.Module):
    """Token ids, through an embedding."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(40, WIDTH, padding_idx=padding), nn.Linear(WIDTH, 1)

    def forward(self, ids: Tensor, *_: Tensor) -> Tensor:
        return self.head(self.words(ids)).mean()


@pytest.mark.parametrize(("padding", "expected"), [(0, {SHARE}), (3, {1.0}), (None, set[float]())])
def test_of_tokens_that_are_no_padding(ingest: IngestDouble, padding: int | None, expected: set[float]) -> None:
    model = Reads(padding)
    ids = torch.where(LEFT, 7, 0)
    with rangewatch.attach(model, optimizer := torch.optim.SGD(model.parameters(), 0.1), url=ingest.url, run="words"):
        for _ in range(3):
            model(ids, LEFT).backward()
            optimizer.step()
    assert set(ingest.series("token_share").values()) == expected
    assert set(ingest.series("mask_share").values()) == {SHARE}


def test_tokens_are_read_less_often_later(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_shares, "TOKEN_STEPS", 4)
    model, ids = Reads(0), torch.where(LEFT, 7, 0)
    with rangewatch.attach(model, optimizer := torch.optim.SGD(model.parameters(), 0.1), url=ingest.url, run="words"):
        for _ in range(40):
            model(ids, LEFT).backward()
            optimizer.step()
    assert set(ingest.series("token_share")) == {0, 1, 2, 3, 32}
