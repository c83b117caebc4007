"""Tokens by expert, as a count by hand has them, of each form in which routers say who goes where."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rangewatch
from rangewatch.hooks.routers import CANNOT_READ, COMPILED, TOO_MANY
from rangewatch.statistics import experts, routing
from rangewatch.wire.events import Routers, read
from tests.agent.ingest_double import IngestDouble

EXPERTS, TOP_K, WIDTH, TOKENS = 6, 2, 8, 40


class Places(nn.Module):
    """Logits, weights and places, as Transformers' routers."""

    num_experts, top_k = EXPERTS, TOP_K

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def forward(self, x: Tensor) -> Any:
        logits = F.linear(x, self.weight)
        weights, places = logits.softmax(-1).topk(TOP_K, dim=-1)
        return logits, weights, places


class Titan(nn.Module):
    """Weights, places and counts, the logits inside: as torchtitan's."""

    num_experts, top_k = EXPERTS, TOP_K

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, x: Tensor, expert_bias: Tensor | None = None) -> Any:
        weights, places = self.gate(x).sigmoid().topk(TOP_K, dim=-1)
        return weights, places, torch.histc(places.float(), EXPERTS, 0, EXPERTS)


class MegatronTopKRouter(nn.Module):
    """Probabilities and a mask, experts and top_k in its config: as Megatron's; some tokens are dropped."""

    config = SimpleNamespace(num_moe_experts=EXPERTS, moe_router_topk=TOP_K)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def forward(self, x: Tensor) -> Any:
        probabilities = F.linear(x, self.weight).softmax(-1)
        chosen = torch.zeros_like(probabilities, dtype=torch.bool).scatter(1, probabilities.topk(TOP_K).indices, True)
        chosen[::7] = False
        return probabilities * chosen, chosen


class SwitchTop1Router(nn.Module):
    """(batch, sequence, experts) of 0 and 1 with zeros where a token is dropped, as Switch Transformers'."""

    num_experts = EXPERTS

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(WIDTH, EXPERTS)

    def forward(self, x: Tensor) -> Any:
        logits = self.classifier(x.reshape(4, -1, WIDTH))
        chosen = F.one_hot(logits.argmax(-1), EXPERTS)
        chosen = chosen * (chosen.cumsum(-2) <= 3)
        return logits.softmax(-1).amax(-1, keepdim=True), chosen, logits


class TopKGate(nn.Module):
    """A loss, weights and a mask by place of an expert's capacity, as DeepSpeed's."""

    k = 1

    def __init__(self) -> None:
        super().__init__()
        self.wg, self.num_experts = nn.Linear(WIDTH, EXPERTS), EXPERTS

    def forward(self, x: Tensor) -> Any:
        chosen = F.one_hot(self.wg(x).argmax(-1), EXPERTS)
        place = chosen.cumsum(0) * chosen
        mask = torch.stack([place == each for each in range(1, 5)], dim=-1)  # 4 places an expert
        return mask.float().mean(), mask.float(), mask, chosen.sum(0)


class Block(nn.Module):
    """What holds a router, under the name `gate` where that is a linear layer, as in Transformers 4."""

    def __init__(self, router: nn.Module, name: str = "router") -> None:
        super().__init__()
        self.num_experts, self.top_k, self.name = EXPERTS, TOP_K, name
        self.add_module(name, router)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        found = self.get_submodule(self.name)(x)
        given = found if isinstance(found, Tensor) else found[0]
        return self.mix(x) * given.float().mean()


def by_hand(found: Any, top_k: int) -> tuple[Tensor, int, int]:
    """(experts,) tokens, how many were routed, and dropped, of what a router here returned: loops, no tricks."""
    count, dropped = torch.zeros(EXPERTS, dtype=torch.int64), 0
    if isinstance(found, Tensor):
        found = (found, found.topk(TOP_K, dim=-1).indices)
    last = next(each for each in found if not each.is_floating_point() and each.dim() > 1)
    if last.dim() == 3 and last.shape[1] == EXPERTS:
        last = last.any(-1)
    rows = last.reshape(-1, last.shape[-1]).tolist()
    for row in rows:
        chosen = [at for at, each in enumerate(row) if each] if len(row) == EXPERTS else row
        for expert in chosen:
            count[expert] += 1
        if len(row) == EXPERTS:
            dropped += top_k - len(chosen)
    return count, len(rows), dropped


def counted(ingest: IngestDouble, fqn: str) -> dict[int, dict[str, float]]:
    """By step: what arrived of the tensor of this router that has its counts."""
    found: dict[int, dict[str, float]] = {}
    for batch in ingest.batches:
        if batch.ranges is None:
            continue
        tensors = ingest.catalogues[batch.catalogue]
        rows = [at for at, number in enumerate(batch.ranges.tensors) if tensors[number].fqn == fqn]
        for name, values in batch.ranges.columns.items():
            if name in {each.name for each in experts.ALL}:
                for column, step in enumerate(batch.ranges.steps.tolist()):
                    found.setdefault(step, {})[name] = float(values[rows, column].sum())
    return found


def tokens_of(cell: dict[str, float]) -> list[float]:
    return [cell.get(experts.column(at), 0.0) for at in range(EXPERTS)]


def routers(ingest: IngestDouble) -> Routers:
    known = read(Routers, ingest.events("routers")[-1].data)
    assert known is not None
    return known


FORMS: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "places": (Places, "router", 0), "torchtitan": (Titan, "router", 0), "Megatron": (MegatronTopKRouter, "router", 2),
    "Switch": (SwitchTop1Router, "router", 1), "linear": (lambda: nn.Linear(WIDTH, EXPERTS), "gate", 0),
    "DeepSpeed": (TopKGate, "gate", 1),
}  # fmt: skip
"""What makes a router, its name, and of how many places of a token drops are seen (0: they are not)."""


@pytest.mark.parametrize("backend", ["auto", "device"])
@pytest.mark.parametrize("form", FORMS)
def test_tokens_by_expert_are_those_of_a_count_by_hand(form: str, backend: str, ingest: IngestDouble) -> None:
    make, name, top_k = FORMS[form]
    torch.manual_seed(1)
    model = Block(make(), name)
    truth: list[Any] = []
    model.get_submodule(name).register_forward_hook(lambda module, args, out: truth.append(by_hand(out, top_k)))
    with rangewatch.attach(model, url=ingest.url, backend=backend) as handle:
        for _ in range(3):
            for _ in range(2):  # microbatches
                model(torch.randn(TOKENS, WIDTH)).sum().backward()
            handle.step()
        assert not handle.stats()["not_observed"] and not handle.stats()["faults"]
    found = counted(ingest, name)
    for step in range(3):
        (one, routed, dropped), (other, more, too) = truth[2 * step : 2 * step + 2]
        assert tokens_of(found[step]) == (one + other).tolist(), step
        assert found[step][experts.ROUTED] == routed + more
        assert found[step].get(experts.DROPPED, 0) == (dropped + too if top_k else 0)
    (known,) = routers(ingest).routers
    assert (known.fqn, known.experts, known.sees_drops) == (name, EXPERTS, top_k > 0)


def test_the_entropy_is_that_of_the_logits(ingest: IngestDouble) -> None:
    torch.manual_seed(2)
    model, x = Block(Places()), torch.randn(TOKENS, WIDTH)
    with rangewatch.attach(model, url=ingest.url) as handle:
        model(x)
        handle.step()
    cell = counted(ingest, "router")[0]
    p = F.linear(x, model.get_submodule("router").weight.detach()).softmax(-1)
    assert cell[experts.ENTROPY_COUNT] == TOKENS
    assert cell[experts.ENTROPY] / 1000 == pytest.approx(float(-(p * p.log2()).sum()), abs=0.01)
    (known,) = routers(ingest).routers
    assert (known.logits, known.logits_index, known.index) == ("router", 0, 0)


def test_logits_of_a_layer_inside_are_named(ingest: IngestDouble) -> None:
    model = Block(Titan())
    with rangewatch.attach(model, url=ingest.url) as handle:
        model(torch.randn(TOKENS, WIDTH))
        handle.step()
    assert routers(ingest).routers[0].logits == "router.gate"
    assert counted(ingest, "router.gate")[0][experts.ENTROPY_COUNT] == TOKENS


class Chooser(nn.Module):
    """A router that nothing tells."""

    def __init__(self, count: int = EXPERTS) -> None:
        super().__init__()
        self.weight, self.top = nn.Parameter(torch.randn(count, WIDTH)), TOP_K

    def forward(self, x: Tensor) -> Any:
        scores = F.linear(x, self.weight)
        return scores, scores.topk(self.top, dim=-1).indices


class Holder(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.choose = inner

    def forward(self, x: Tensor) -> Tensor:
        found = self.choose(x)
        return found if isinstance(found, Tensor) else found[0]  # type: ignore[no-any-return]


class TestNamed:
    def test_any_module_can_be_one(self, ingest: IngestDouble) -> None:
        model, x = Holder(Chooser()), torch.randn(TOKENS, WIDTH)
        with rangewatch.attach(model, url=ingest.url, routers=["cho*"]) as handle:
            places = model.choose(x)[1]
            handle.step()
        assert tokens_of(counted(ingest, "choose")[0]) == torch.bincount(places.flatten(), minlength=EXPERTS).tolist()

    def test_without_a_name_it_is_none(self, ingest: IngestDouble) -> None:
        model = Holder(Chooser())
        with rangewatch.attach(model, url=ingest.url) as handle:
            model(torch.randn(TOKENS, WIDTH))
            handle.step()
        assert not ingest.events("routers")
        assert all(each.name != experts.ROUTED for each in ingest.openings[0].catalogue.statistics)

    def test_a_name_of_no_module_raises(self) -> None:
        with pytest.raises(ValueError, match="option routers: 'blocks' matches no module"):
            rangewatch.attach(Holder(Chooser()), routers=["blocks"])

    @pytest.mark.parametrize(
        ("inner", "reason"), [(nn.Linear(WIDTH, EXPERTS), CANNOT_READ), (Chooser(experts.MOST + 1), TOO_MANY)]
    )
    def test_what_cannot_be_read_is_said(self, inner: nn.Module, reason: str, ingest: IngestDouble) -> None:
        model = Holder(inner)
        with rangewatch.attach(model, url=ingest.url, routers="choose") as handle:
            model(torch.randn(TOKENS, WIDTH))
            handle.step()
            assert reason in handle.stats()["not_observed"]["choose"]


class TestWhatIsCounted:
    def test_a_recomputation_counts_once_and_evaluation_not(self, ingest: IngestDouble) -> None:
        model, x = Block(Places()), torch.randn(TOKENS, WIDTH, requires_grad=True)
        with rangewatch.attach(model, url=ingest.url) as handle:
            checkpoint(model, x, use_reentrant=False).sum().backward()
            with torch.no_grad():
                model.eval()(x)
            handle.step()
        assert counted(ingest, "router")[0][experts.ROUTED] == TOKENS

    def test_a_place_below_0_is_a_token_that_was_dropped(self) -> None:
        places = torch.tensor([[0, -1], [5, 2]])
        choice = routing.interpret([torch.rand(2, 2), places], EXPERTS, TOP_K, is_linear=False)
        assert choice is not None
        assert routing.counts([None, places], choice).tolist() == [1, 1, 0, 1, 0, 0, 1]

    def test_a_compiled_router_is_said_to_be_not_counted(self, ingest: IngestDouble) -> None:
        model = Block(Places())
        with rangewatch.attach(model, url=ingest.url) as handle:
            torch.compile(model, backend="eager")(torch.randn(TOKENS, WIDTH)).sum().backward()
            handle.step()
            assert handle.stats()["not_observed"]["router"] == COMPILED

    def test_losses_are_the_same_bits(self, ingest: IngestDouble) -> None:
        def train(attached: bool) -> list[float]:
            torch.manual_seed(3)
            model = Block(Places())
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            handle = rangewatch.attach(model, optimizer, url=ingest.url) if attached else None
            losses = []
            for _ in range(12):
                loss = model(torch.randn(TOKENS, WIDTH)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            if handle:
                handle.detach()
            return losses

        assert train(True) == train(False)
