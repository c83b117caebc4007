"""The largest logit of each head is within ln(keys) of brute force where a kernel computes them, and else bounded."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import rangewatch
from rangewatch.hooks import attention_logits
from rangewatch.hooks.attention_logits import BOUND, LOGITS, Attended, bound, largest, log_sum_exp
from tests.agent.ingest_double import IngestDouble

DIM, HEADS, LENGTH = 16, 4, 12


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.qkv, self.options = nn.Linear(DIM, 3 * DIM), options
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1))
        if not torch.compiler.is_compiling():
            self.seen.append(logits_of(q, k))
        out = F.scaled_dot_product_attention(q, k, v, **self.options)
        return out.transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attn, self.out = Attention(**options), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attn(x))  # type: ignore[no-any-return]


def logits_of(
    q: Tensor, k: Tensor, mask: Tensor | None = None, *, is_causal: bool = False, scale: Any = None
) -> Tensor:
    """(batch, heads, queries, keys) float64, -Inf where it is masked."""
    q, k = q.detach().double(), k.detach().double()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    found = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        found = found.masked_fill(torch.ones(found.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    if mask is not None:
        found = found.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else found + mask.double()
    return found


def by_head(logits: Tensor) -> list[float]:
    return logits.nan_to_num(neginf=0.0).amax(dim=(0, 2, 3)).clamp_min(0).tolist()


def arrived(ingest: IngestDouble) -> dict[tuple[str, int, int], float]:
    """(name, head, step) -> amax of what is named for logits."""
    found = {}
    for batch in ingest.batches:
        if batch.ranges is not None:
            tensors = ingest.catalogues[batch.catalogue]
            for row, number in enumerate(batch.ranges.tensors):
                for column, step in enumerate(batch.ranges.steps.tolist()):
                    entry = tensors[number]
                    if LOGITS in entry.fqn and batch.ranges.columns["call_count"][row, column]:
                        found[entry.fqn, entry.index, step] = float(batch.ranges.columns["amax"][row, column])
    return found


def case(chance: torch.Generator, number: int) -> None:
    """One random shape, mask and dtype: within ln(keys) above brute force."""
    pick = lambda *of: of[int(torch.randint(len(of), (1,), generator=chance))]  # noqa: E731
    batch, heads, queries, keys, dim = pick(1, 2, 3), pick(1, 2, 5), pick(1, 4, 33, 70), pick(1, 7, 64), pick(4, 8, 20)
    dtype, kind = pick(torch.float32, torch.bfloat16, torch.float16, torch.float64), pick("", "causal", "bool", "float")
    size, scale = pick(0.1, 1.0, 6.0), pick(None, 0.3)
    q, k, v = (
        (torch.randn(batch, heads, length, dim, generator=chance) * size).to(dtype).requires_grad_()
        for length in (queries, keys, keys)
    )
    mask: Tensor | None = None
    if kind == "bool":
        mask = torch.rand(queries, keys, generator=chance) > 0.3
        mask[:, 0] = True
    elif kind == "float":
        mask = torch.randn(queries, keys, generator=chance).to(dtype)
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal", scale=scale)
    sums = log_sum_exp(out, q)
    brute = logits_of(q, k, mask, is_causal=kind == "causal", scale=scale)
    limit = torch.tensor(by_head(brute))
    slack = 0.02 * limit.abs() + 0.02 if dtype in (torch.bfloat16, torch.float16) else 1e-4 * (1 + limit)
    text = f"case {number}: {batch, heads, queries, keys, dim, dtype, kind, size, scale}"
    if sums is not None:
        found = largest(sums)
        assert (found >= limit - slack).all() and (found <= limit + math.log(keys) + slack).all(), text
    above = bound(Attended(q, k, mask, scale, out))
    assert (above >= limit - slack).all(), text
    assert sums is not None or keys == 1 or dtype is not torch.float32, text


def test_within_ln_of_the_keys_of_brute_force() -> None:
    chance = torch.Generator().manual_seed(0)
    for number in range(20):
        case(chance, number)


@pytest.mark.slow
def test_within_ln_of_the_keys_of_brute_force_in_200_cases() -> None:
    chance = torch.Generator().manual_seed(1)
    for number in range(200):
        case(chance, number)


@pytest.mark.parametrize("backend", ["auto", "device"])
def test_each_head_of_each_step(backend: str, ingest: IngestDouble) -> None:
    torch.manual_seed(0)
    model = Model()
    truth = []
    with rangewatch.attach(model, url=ingest.url, backend=backend) as handle:
        for _ in range(3):
            for _ in range(2):  # microbatches
                model(torch.randn(2, LENGTH, DIM)).sum().backward()
            truth.append(by_head(torch.cat(model.attn.seen)))
            model.attn.seen.clear()
            handle.step()
        assert not handle.stats()["faults"]
    found = arrived(ingest)
    assert set(found) == {(f"attn {LOGITS}", head, step) for head in range(HEADS) for step in range(3)}
    for (_, head, step), amax in found.items():
        assert truth[step][head] - 1e-4 <= amax <= truth[step][head] + math.log(LENGTH) + 1e-4
    order = [each for each in ingest.catalogues[ingest.batches[-1].catalogue] if LOGITS in each.fqn]
    assert [each.index for each in sorted(order, key=lambda each: each.call_index)] == list(range(HEADS))


class TestBound:
    def test_the_math_kernel_saves_none(self, ingest: IngestDouble) -> None:
        torch.manual_seed(0)
        model = Model()
        with rangewatch.attach(model, url=ingest.url) as handle, sdpa_kernel(SDPBackend.MATH):
            model(torch.randn(2, LENGTH, DIM)).sum().backward()
            handle.step()
        truth = by_head(model.attn.seen[0])
        found = arrived(ingest)
        assert set(found) == {(f"attn {BOUND}", head, 0) for head in range(HEADS)}
        assert all(amax >= truth[head] for (_, head, _), amax in found.items())

    def test_what_a_checkpoint_has_packed_is_not_unpacked(self, ingest: IngestDouble) -> None:
        model, x = Model(), torch.randn(2, LENGTH, DIM, requires_grad=True)
        with rangewatch.attach(model, url=ingest.url) as handle:
            out = checkpoint(model, x, use_reentrant=False)
            assert len(model.attn.seen) == 1, "nothing was computed again before the backward"
            out.sum().backward()
            assert len(model.attn.seen) == 2
            handle.step()
        assert {name for name, _, _ in arrived(ingest)} == {f"attn {BOUND}"}

    def test_heads_that_share_keys(self) -> None:
        q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)
        values = bound(Attended(q, k, None, None, None))
        assert (values >= torch.tensor(by_head(logits_of(q, k)))).all() and len(values) == 4


class TestWhoAttends:
    def test_multihead_attention_is_one(self, ingest: IngestDouble) -> None:
        model = nn.TransformerEncoderLayer(DIM, HEADS, 32, dropout=0.0, batch_first=True)
        with rangewatch.attach(model, url=ingest.url) as handle:
            model(torch.randn(2, LENGTH, DIM)).sum().backward()
            handle.step()
        assert {name for name, _, _ in arrived(ingest)} == {f"self_attn {LOGITS}"}

    def test_another_model_and_evaluation_are_not(self, ingest: IngestDouble) -> None:
        model, other = Model(), Model()
        with rangewatch.attach(model, url=ingest.url) as handle:
            other(torch.randn(2, LENGTH, DIM)).sum().backward()
            with torch.no_grad():
                model.eval()(torch.randn(2, LENGTH, DIM))
            handle.step()
        assert arrived(ingest) == {}


class TestTorchsFunction:
    def test_it_is_torchs_own_again(self, ingest: IngestDouble) -> None:
        own = F.scaled_dot_product_attention
        with rangewatch.attach(Model(), url=ingest.url), rangewatch.attach(Model(), url=ingest.url, run="other"):
            assert F.scaled_dot_product_attention is not own
            assert pickle.loads(pickle.dumps(F.scaled_dot_product_attention)) is F.scaled_dot_product_attention
        assert F.scaled_dot_product_attention is own

    @pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
    def test_torchscript_compiles_it(self, ingest: IngestDouble) -> None:
        with rangewatch.attach(Model(), url=ingest.url):
            scripted = torch.jit.script(scripted_attention)
        q = torch.randn(1, 2, 3, 4)
        assert torch.equal(scripted(q), F.scaled_dot_product_attention(q, q, q))

    def test_a_compiled_model_is_one_graph(self, ingest: IngestDouble) -> None:
        model, x = Model(), torch.randn(2, LENGTH, DIM)
        with rangewatch.attach(model, url=ingest.url) as handle:
            torch.compile(model, backend="eager", fullgraph=True)(x).sum().backward()
            handle.step()
        assert arrived(ingest) == {}

    def test_losses_are_the_same_bits(self, ingest: IngestDouble) -> None:
        def train(attached: bool) -> list[float]:
            torch.manual_seed(3)
            model = Model(is_causal=True)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            handle = rangewatch.attach(model, optimizer, url=ingest.url) if attached else None
            losses = []
            for _ in range(5):
                loss = model(torch.randn(2, LENGTH, DIM)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            if handle:
                handle.detach()
            return losses

        assert train(True) == train(False)


def scripted_attention(q: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q)


def test_flex_attention_is_bounded(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import flex_attention as flex

    monkeypatch.setattr(flex, "flex_attention", lambda query, key, value, **kwargs: query * key.mean())
    assert attention_logits.FUNCTIONS[1]._owner == flex.__name__

    class Flex(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1))
            return flex.flex_attention(q, k, v, scale=0.5)  # type: ignore[no-any-return]

    model = Flex()
    with rangewatch.attach(model, url=ingest.url) as handle:
        model(torch.randn(2, LENGTH, DIM)).sum().backward()
        handle.step()
    assert {name for name, _, _ in arrived(ingest)} == {BOUND}
