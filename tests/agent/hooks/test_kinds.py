"""What is recorded when it is asked for: inputs, weights, levels, and some modules only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.core.options import LEVELS, resolve
from tests.agent.ingest_double import IngestDouble
from tests.agent.statistics.reference import Key, assert_recorded, flat


class Scale(nn.Module):
    """Positional, keyword, nested and integer arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x: Tensor, mode: str, *, extra: dict[str, Tensor], which: Tensor) -> Tensor:
        return x * self.factor + extra["shift"][which]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ff, self.act, self.scale = nn.Linear(4, 4), nn.ReLU(inplace=True), Scale()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.ff(x))
        return self.scale(x, "fast", extra={"shift": x.detach() + 7.0}, which=torch.tensor(1))


class TestInputs:
    @pytest.mark.parametrize("backend", ["auto", "device"])
    @pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_are_read_before_the_module_changes_them(
        self, ingest: IngestDouble, backend: str, is_compiled: bool
    ) -> None:
        model = Net()
        kept: dict[Key, list[Tensor]] = {}
        hooks = [
            module.register_forward_pre_hook(
                lambda _, args, kwargs, fqn=fqn: keep_inputs(kept, fqn, args, kwargs), with_kwargs=True
            )
            for fqn, module in model.named_modules()
        ]
        x = torch.randn(3, 4)
        model(x)
        for hook in hooks:
            hook.remove()
        with rangewatch.attach(model, url=ingest.url, kinds="input", full_every=1, backend=backend) as handle:
            called = torch.compile(model, backend="aot_eager", fullgraph=True) if is_compiled else model
            called(x).sum().backward()
            handle.step()
            assert handle.stats()["faults"] == {}
        assert set(kept) == {("", "input", 0), ("ff", "input", 0), ("act", "input", 0)} | {
            ("scale", "input", index) for index in (0, 2)
        }
        assert_recorded(ingest.tensors(), 0, kept)
        torch._dynamo.reset()

    def test_not_unless_asked_for(self, ingest: IngestDouble) -> None:
        model = Net()
        with rangewatch.attach(model, url=ingest.url) as handle:
            inner = [module for module in model.modules() if module is not model]  # the whole one's says when it begins
            assert not any(module._forward_pre_hooks for module in inner)
            model(torch.randn(3, 4)).sum().backward()
            handle.step()
        assert {kind for _, kind, _ in ingest.tensors()} == {"output", "grad_output", "grad"}


class Mixed(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None, mode: str) -> tuple[Any, ...]:
        return None, x * 2.0, {"cache": [3, mask]}


def test_token_ids_are_no_warning(ingest: IngestDouble) -> None:
    model = nn.Embedding(4, 2)
    with rangewatch.attach(model, url=ingest.url, level="frames") as handle:
        model(torch.tensor([1, 2])).sum().backward()
        handle.step()
        assert handle.stats()["not_observed"] == {}
    assert ingest.events("other_values")[0].data == {"": {"input[0]": "integer tensor"}}


def test_what_is_no_tensor_is_said(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model.add_module("mixed", Mixed())
    model.forward = lambda x: model.mixed(model[0](x), None, "fast")[1]  # type: ignore[method-assign,operator]
    with rangewatch.attach(model, url=ingest.url, level="frames") as handle:
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
            handle.step()
    (reported,) = ingest.events("other_values")
    nothing, other = "None", "not a tensor"
    assert reported.data == {
        "mixed": {
            "input[1]": nothing, "input[2]": other, "output[0]": nothing, "output[2]": other, "output[3]": nothing,
        }
    }  # fmt: skip
    assert ingest.tensors()["mixed", "output", 1][1]["call_count"] == 1


def keep_inputs(kept: dict[Key, list[Tensor]], fqn: str, args: Any, kwargs: Any) -> None:
    for index, tensor in enumerate(flat((args, kwargs))):
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            kept[fqn, "input", index] = [tensor.detach().clone()]


class TestWeights:
    @pytest.mark.parametrize("start_step", [0, 7])
    def test_on_their_cadence_as_the_forward_uses_them(self, ingest: IngestDouble, start_step: int) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options: Any = {"kinds": "weight", "weight_every": 3, "start_step": start_step, "full_every": 1}
        kept = {}
        with rangewatch.attach(model, optimizer, url=ingest.url, **options):
            for step in range(start_step, start_step + 7):
                kept[step] = {(fqn, "weight", 0): [value.detach().clone()] for fqn, value in model.named_parameters()}
                model(torch.randn(3, 4)).sum().backward()
                optimizer.step()
        recorded = ingest.tensors()
        due = list(range(start_step, start_step + 7, 3))
        assert sorted(recorded["ff.weight", "weight", 0]) == due
        for step in due:
            assert_recorded(recorded, step, kept[step])

    def test_a_weight_that_overflows(self, ingest: IngestDouble) -> None:
        model = nn.Linear(2, 2)
        with rangewatch.attach(model, url=ingest.url, kinds="weight") as handle, torch.no_grad():
            model.weight[0, 1] = float("inf")
            handle.step()
        assert ingest.tensors()["weight", "weight", 0][0]["inf_count"] == 1


class TestWhatTheOptimizerGetsAndDoes:
    @pytest.mark.parametrize("backend", ["auto", "device"])
    def test_gradients_and_updates(self, ingest: IngestDouble, backend: str) -> None:
        """After accumulation over two microbatches and clipping; updates on the weights' cadence."""
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        options: Any = {"kinds": ["reduced_grad", "update"], "weight_every": 2, "full_every": 1, "backend": backend}
        kept: dict[int, dict[Key, list[Tensor]]] = {}
        with rangewatch.attach(model, optimizer, url=ingest.url, **options) as handle:
            for step in range(4):
                for _ in range(2):
                    model(torch.randn(3, 4)).sum().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                before = {fqn: value.detach().clone() for fqn, value in model.named_parameters()}
                kept[step] = {
                    (fqn, "reduced_grad", 0): [value.grad.clone()]  # type: ignore[union-attr]
                    for fqn, value in model.named_parameters()
                }
                optimizer.step()
                if step % 2 == 0:
                    for fqn, value in model.named_parameters():
                        kept[step][fqn, "update", 0] = [value.detach() - before[fqn]]
                optimizer.zero_grad()
            assert handle.stats()["faults"] == {}
        for step, tensors in kept.items():
            assert_recorded(ingest.tensors(), step, tensors)
        assert sorted(ingest.tensors()["ff.weight", "update", 0]) == [0, 2]

    def test_gradients_of_a_skipped_step(self, ingest: IngestDouble) -> None:
        """No optimizer takes them, and there is no update."""
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
        with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url, level="frames"):
            for value in (1e9, 1e-9):
                scaler.scale(model(torch.full((2, 3), value)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        cells = ingest.tensors()["weight", "reduced_grad", 0]
        assert [cells[step]["inf_count"] for step in (0, 1)] == [3, 0]
        assert cells[1]["amax"] == pytest.approx(2e-9), "unscaled"
        assert ("weight", "update", 0) not in ingest.tensors()

    def test_an_optimizer_with_a_closure(self, ingest: IngestDouble) -> None:
        """As Lightning steps: the forward and the backward are inside `optimizer.step`."""
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wanted: list[float] = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.randn(2, 3)).sum()
            loss.backward()
            wanted.append(float(model.weight.grad.abs().max()))  # type: ignore[union-attr]
            return loss

        options: Any = {"kinds": ["reduced_grad", "update"], "weight_every": 1}
        with rangewatch.attach(model, optimizer, url=ingest.url, **options):
            for _ in range(3):
                optimizer.step(closure)
        for kind, factor in (("reduced_grad", 1.0), ("update", 0.1)):
            cells = ingest.tensors()["weight", kind, 0]
            assert [cells[step]["amax"] for step in range(3)] == pytest.approx([factor * each for each in wanted])

    def test_two_optimizers(self, ingest: IngestDouble) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
        with rangewatch.attach(model, optimizers, url=ingest.url, kinds=["reduced_grad", "update"], weight_every=1):
            for _ in range(2):
                model(torch.ones(2, 3)).sum().backward()
                for optimizer in optimizers:
                    optimizer.step()
        for kind in ("reduced_grad", "update"):
            for fqn, _ in model.named_parameters():
                assert [cell["call_count"] for cell in ingest.tensors()[fqn, kind, 0].values()] == [1, 1]


class TestLevels:
    @pytest.mark.parametrize("level", LEVELS)
    def test_are_names_for_kinds(self, ingest: IngestDouble, level: str) -> None:
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        with rangewatch.attach(model, optimizer, url=ingest.url, level=level):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
        assert {kind for _, kind, _ in ingest.tensors()} == set(LEVELS[level]) - {"momentum_buffer"}

    def test_given_in_the_environment(self) -> None:
        environment = {"RANGEWATCH_LEVEL": "frames"}
        assert resolve({}, environment).kinds == LEVELS["frames"]
        assert resolve({"level": "grads"}, environment).kinds == ("grad",)
        assert resolve({"kinds": ["output"]}, environment).kinds == ("output",), "what the script says wins"

    def test_wrong(self) -> None:
        with pytest.raises(ValueError, match="give one of them"):
            rangewatch.attach(Net(), level="grads", kinds=["output"])
        with pytest.raises(ValueError, match="level='all': must be one of grads, outputs, frames"):
            rangewatch.attach(Net(), level="all")


class TestSomeModules:
    @pytest.mark.parametrize(
        ("options", "wanted"),
        [
            ({"include": "ff"}, {"ff"}),
            ({"include": ["0.*"]}, {"0.ff", "0.act", "0.scale"}),
            ({"include": ["0"], "exclude": "*.act"}, {"0", "0.ff", "0.scale"}),
            ({"exclude": ["0", "1.scale", "1.ff"]}, {"", "1", "1.act"}),
            ({"include": ["*.ff", "1.a?t"]}, {"0.ff", "1.ff", "1.act"}),
        ],
    )
    def test_patterns(self, ingest: IngestDouble, options: dict[str, Any], wanted: set[str]) -> None:
        model: nn.Module = Net() if options == {"include": "ff"} else nn.Sequential(Net(), Net())
        with rangewatch.attach(model, url=ingest.url, level="frames", **options) as handle:
            model(torch.randn(3, 4)).sum().backward()
            handle.step()
            assert handle.stats()["not_observed"].keys() <= wanted
        recorded = ingest.tensors()
        assert {fqn for fqn, kind, _ in recorded if kind == "output"} == wanted
        assert {fqn for fqn, kind, _ in recorded if kind == "input"} == wanted
        parameters = {fqn for fqn, _ in model.named_parameters() if fqn.rpartition(".")[0] in wanted}
        for kind in ("grad", "weight"):
            assert {fqn for fqn, each, _ in recorded if each == kind} == parameters

    def test_in_the_environment(self) -> None:
        assert resolve({}, {"RANGEWATCH_INCLUDE": "a.*, b"}).include == ("a.*", "b")

    def test_wrong(self) -> None:
        with pytest.raises(ValueError, match="'nothing' matches no module"):
            rangewatch.attach(Net(), include=["ff", "nothing"])
        with pytest.raises(ValueError, match="no module of the model is left"):
            rangewatch.attach(Net(), exclude="*")
        with pytest.raises(ValueError, match="include"):
            rangewatch.attach(Net(), include=[""])


class Masked(nn.Module):
    """Adds a mask of -Inf, which its child returns."""

    def __init__(self) -> None:
        super().__init__()
        self.mask, self.scores = nn.Identity(), nn.Linear(4, 4)
        self.register_buffer("limits", torch.tensor([0.0, 0.0, -torch.inf, -torch.inf]))

    def forward(self, x: Tensor) -> Tensor:
        return (self.scores(x) + self.mask(self.limits)).softmax(-1)


class TestAllowedInfinities:
    @pytest.mark.parametrize("backend", ["auto", "device"])
    @pytest.mark.parametrize("pattern", ["*mask", "mask:output:*"])
    def test_are_not_counted_and_said_once(self, ingest: IngestDouble, backend: str, pattern: str) -> None:
        model = Masked()
        options: Any = {"backend": backend, "allow_inf": [pattern, "scores"], "start_step": 5, "full_every": 1}
        with rangewatch.attach(model, url=ingest.url, ship_interval_s=0, **options) as handle:
            for value in (1.0, 1.0, float("nan")):
                model(torch.full((3, 4), value))
                handle.step()
        recorded = ingest.tensors()
        assert [cell["inf_count"] for cell in recorded["mask", "output", 0].values()] == [0, 0, 0]
        assert recorded["scores", "output", 0][7]["nan_count"] == 12, "NaN is never meant"
        (event,) = ingest.events("allowed_inf")
        assert (event.step, event.message) == (5, "mask:output:0")
        assert event.data == {"fqn": "mask", "kind": "output", "index": 0, "inf_count": 2}

    @pytest.mark.parametrize("pattern", ["(model)", "(model):output:*"])
    def test_the_model_itself_is_called_as_the_pages_do(self, ingest: IngestDouble, pattern: str) -> None:
        model = nn.Sequential(nn.Identity())
        model.register_parameter("unused", nn.Parameter(torch.ones(1)))
        with rangewatch.attach(model, url=ingest.url, allow_inf=pattern, ship_interval_s=0) as handle:
            model(torch.full((3, 4), torch.inf))
            handle.step()
        recorded = ingest.tensors()
        assert recorded["", "output", 0][0]["inf_count"] == 0 < recorded["0", "output", 0][0]["inf_count"]

    def test_others_are_counted(self, ingest: IngestDouble) -> None:
        model = Masked()
        with rangewatch.attach(model, url=ingest.url, allow_inf="mask:grad_output:*") as handle:
            model(torch.ones(3, 4))
            handle.step()
        assert ingest.tensors()["mask", "output", 0][0]["inf_count"] == 2
        assert not ingest.events("allowed_inf")
