"""Real training loops, against a reference that keeps every tensor; what arrives is decoded from the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rangewatch
from rangewatch.recording.observer import NEVER_CALLED
from tests.agent.ingest_double import IngestDouble
from tests.agent.statistics.reference import KeepEverything, assert_recorded


@dataclasses.dataclass
class Answer:
    logits: Tensor
    extra: dict[str, Any]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor], None, int]:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        weights = (query @ key.transpose(-1, -2)).softmax(-1)
        return self.out(weights @ value), [weights, key.transpose(-1, -2)], None, 7


class Net(nn.Module):
    """Containers of all kinds, shared and frozen modules, in-place ones, a parent returning its child's output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attention = Attention()
        self.ff = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Sequential(nn.Linear(8, 8)))
        self.shared = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, tokens: Tensor) -> Answer:
        x = self.embed(tokens)
        attended, weights, _, _ = self.attention(x)
        x = self.shared(self.shared(x + attended))
        x = self.frozen(self.ff(x))
        return Answer(x, {"argmax": x.argmax(-1), "weights": weights, "nested": ({"x": x},)})


def loss_of(output: Any) -> Tensor:
    logits = output.logits if isinstance(output, Answer) else output
    return logits.float().pow(2).mean()


Loop = Callable[[nn.Module, torch.optim.Optimizer, int], None]


def train_and_compare(
    ingest: IngestDouble, model: nn.Module, make_input: Callable[[], Tensor], *, steps: int = 4, **options: Any
) -> Any:
    """Train with the agent and the reference side by side; every step must be equal. Returns the handle's counters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    reference = KeepEverything(model)
    kept = []
    with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0, run="compare", **options) as handle:
        for _ in range(steps):
            loss_of(model(make_input())).backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append((dict(reference.kept), list(reference.order)))
            reference.clear()
        counters = handle.stats()
    recorded = ingest.tensors()
    for step, (tensors, _) in enumerate(kept):
        assert_recorded(recorded, step, tensors)
    order = [
        (e.fqn, e.kind, e.index) for e in sorted(max(ingest.catalogues.values(), key=len), key=lambda e: e.call_index)
    ]
    assert order == kept[0][1], "call order"
    return counters


def tokens() -> Tensor:
    return torch.randint(11, (3, 5))


class TestEverythingIsRecorded:
    @pytest.mark.parametrize("backend", ["auto", "device"])
    @pytest.mark.parametrize("full_every", [1, 3])
    def test_containers_shared_and_inplace_modules(self, ingest: IngestDouble, backend: str, full_every: int) -> None:
        counters = train_and_compare(ingest, Net(), tokens, backend=backend, full_every=full_every)
        assert counters["not_observed"] == {} and not ingest.events("not_observed")
        assert "integer tensor" in ingest.events("other_values")[-1].data[""].values(), "it has no range"
        assert counters["faults"] == {} and counters["dropped"] == {}
        assert ingest.entry("attention", "output", 1).shape == (3, 5, 5)
        assert ingest.entry("shared", "output").module == "Linear"
        assert ingest.tensors()["shared", "output", 0][0]["call_count"] == 2

    @pytest.mark.parametrize("backend", ["auto", "device"])
    def test_nan_and_inf(self, ingest: IngestDouble, backend: str) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        values = iter([1.0, float("nan"), 1.0, float("inf")])
        train_and_compare(ingest, model, lambda: torch.full((2, 4), next(values)), backend=backend)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
    def test_dtypes(self, ingest: IngestDouble, dtype: torch.dtype) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)).to(dtype)
        train_and_compare(ingest, model, lambda: torch.randn(2, 4).to(dtype), full_every=1)
        assert {entry.dtype for entry in max(ingest.catalogues.values(), key=len)} == {str(dtype)[6:]}

    def test_cadence_of_the_full_set(self, ingest: IngestDouble) -> None:
        train_and_compare(ingest, nn.Linear(4, 2), lambda: torch.randn(2, 4), steps=7, full_every=3)
        full = {step for step, cell in ingest.tensors()["", "output", 0].items() if cell["full_numel"]}
        assert full == {0, 3, 6}

    def test_full_set_after_a_nonfinite_step(self, ingest: IngestDouble) -> None:
        inputs = iter([float("nan") if step in {5, 30, 31} else 1.0 for step in range(40)])
        model = nn.Linear(1, 1)
        with rangewatch.attach(model, url=ingest.url) as handle:
            for value in inputs:
                model(torch.full((1, 1), value))
                handle.step()
        full = {step for step, cell in ingest.tensors()["", "output", 0].items() if cell["full_numel"]}
        assert full == {0, 31}, "5 is too soon after the first step's own full set"

    def test_a_dtype_change_is_a_new_entry(self, ingest: IngestDouble) -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0):
            for enabled in (True, False, True):
                with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                    model(torch.randn(3, 4)).sum().backward()
                optimizer.step()
        entries = max(ingest.catalogues.values(), key=len)
        outputs = [entry.dtype for entry in entries if entry.kind == "output"]
        assert outputs == ["bfloat16", "float32"]
        assert sorted(ingest.tensors()["", "output", 0]) == [0, 1, 2]

    def test_only_the_kinds_asked_for(self, ingest: IngestDouble) -> None:
        model = nn.Sequential(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for kinds in (("grad",), ("grad_output",), ("output",)):
            ingest.batches.clear()
            with rangewatch.attach(model, optimizer, url=ingest.url, kinds=kinds, run=kinds[0]):
                model(torch.randn(3, 4)).sum().backward()
                optimizer.step()
            assert {kind for _, kind, _ in ingest.tensors()} == set(kinds)


class TestGradientAccumulation:
    def test_microbatches_merge_into_the_step(self, ingest: IngestDouble) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        reference = KeepEverything(model)
        with rangewatch.attach(model, optimizer, url=ingest.url, full_every=1):
            for step in range(2):
                reference.clear()
                for _ in range(3):
                    loss_of(model(torch.randn(5, 4))).backward()
                optimizer.step()
                optimizer.zero_grad()
                kept = dict(reference.kept) if step == 1 else {}
        assert_recorded(ingest.tensors(), 1, kept)
        assert ingest.tensors()["0", "output", 0][1]["call_count"] == 3


class TestWhatIsNotATrainingForward:
    def test_evaluation_is_skipped_and_counted(self, ingest: IngestDouble) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            for evaluates in (True, False):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                if evaluates:
                    model.eval()
                    with torch.no_grad():
                        model(torch.full((2, 4), 1e9))
                    with torch.inference_mode():
                        model(torch.full((2, 4), 1e9))
                    model.train()
            assert handle.stats()["skipped"]["eval_forward"] == 2 * 3
        cells = ingest.tensors()["", "output", 0]
        assert max(cell["amax"] for cell in cells.values()) < 100

    @pytest.mark.parametrize("use_reentrant", [True, False])
    def test_recomputation_is_not_a_second_call(self, ingest: IngestDouble, use_reentrant: bool) -> None:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
                self.last = nn.Linear(4, 2)
                self.uses_checkpoint = True

            def forward(self, x: Tensor) -> Tensor:
                if self.uses_checkpoint:
                    return self.last(checkpoint(self.inner, x, use_reentrant=use_reentrant))
                return self.last(self.inner(x))

        model = Block()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        x = torch.randn(3, 4, requires_grad=True)
        with rangewatch.attach(model, optimizer, url=ingest.url, full_every=1) as handle:
            for model.uses_checkpoint in (True, False, False, False):  # of steps 1 and 2 updates are sampled
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            assert handle.stats()["skipped"]["recompute"] > 0
        recorded = ingest.tensors()
        assert ("inner.0", "grad_output", 0) in recorded
        for key, steps in recorded.items():
            assert steps[0] == steps[3], key

    def test_sparse_integer_and_meta_are_not_observed(self, ingest: IngestDouble) -> None:
        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table = nn.Embedding(5, 2, sparse=True)

            def forward(self, x: Tensor) -> tuple[Tensor, ...]:
                y = self.table(x)
                return y, y.detach().to_sparse(), y.detach().to("meta"), x, torch.view_as_complex(y)

        model = Odd()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
            for _ in range(2):
                model(torch.tensor([1, 2]))[0].sum().backward()
                optimizer.step()
            not_observed = handle.stats()["not_observed"]
        assert not_observed["table.weight"] == "grad: sparse coo tensor"
        assert ingest.events("not_observed")[-1].data == not_observed
        assert {key for key in ingest.tensors() if key[1] == "output"} == {("table", "output", 0), ("", "output", 0)}

    def test_torch_func_transforms(self, ingest: IngestDouble) -> None:
        model = nn.Linear(2, 2)
        with rangewatch.attach(model, url=ingest.url) as handle:
            torch.func.vmap(model)(torch.ones(3, 2))
            handle.step()
            assert handle.stats()["not_observed"] == {"": "output: inside a torch.func transform"}

    def test_a_module_that_is_never_called(self, ingest: IngestDouble) -> None:
        model = nn.ModuleDict({"used": nn.Linear(2, 2), "late": nn.Linear(2, 2), "never": nn.Linear(2, 2)})
        with rangewatch.attach(model, url=ingest.url, ship_interval_s=0) as handle:
            for name in ("used", "late"):
                model[name](torch.ones(1, 2))
                handle.step()
        reason = NEVER_CALLED
        events = [event.data for event in ingest.events("not_observed")]
        assert events == [{"late": reason, "never": reason}, {"never": reason}]

    def test_parameters_without_a_gradient_and_parameters_that_thaw(self, ingest: IngestDouble) -> None:
        model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("used", "thawed", "unused")})
        model["thawed"].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0) as handle:
            for _ in range(3):
                model["thawed"](model["used"](torch.ones(1, 2))).sum().backward()
                optimizer.step()
                model["thawed"].requires_grad_(True)
            assert handle.stats()["not_observed"]["unused.weight"] == "no gradient has reached it"
            assert "used.weight" not in handle.stats()["not_observed"]
        assert sorted(ingest.tensors()["used.weight", "grad", 0]) == [0, 1, 2]
        assert sorted(ingest.tensors()["thawed.weight", "grad", 0]) == [1, 2]

    def test_tensor_subclasses(self, ingest: IngestDouble) -> None:
        from torch.testing._internal.two_tensor import TwoTensor

        class Returns(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.tensor([1.0, -5.0]))

            def forward(self) -> tuple[Any, ...]:
                return self.weight, TwoTensor(torch.ones(2), torch.ones(2))

        with rangewatch.attach(model := Returns(), url=ingest.url) as handle:
            model()
            handle.step()
            assert handle.stats()["not_observed"] == {"": "output: tensor subclass TwoTensor"}
        assert ingest.tensors()["", "output", 0][0]["amax"] == 5.0


class TestLeaves:
    def test_a_module_that_returns_its_parameter_gathers_no_hooks(self, ingest: IngestDouble) -> None:
        class Weight(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(3))

            def forward(self) -> Tensor:
                return self.weight

        model = Weight()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with rangewatch.attach(model, optimizer, url=ingest.url):
            for _ in range(5):
                model().sum().backward()
                optimizer.step()
            assert len(model.weight._backward_hooks or {}) <= 1
        cells = ingest.tensors()["", "grad_output", 0]
        assert [cells[step]["call_count"] for step in sorted(cells)] == [1] * 5
