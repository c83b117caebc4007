"""Bad input: the training is as without us, and what is not observed is said, with the reason."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import rangewatch
from rangewatch.core.guard import Guarded
from tests import forked
from tests.agent.ingest_double import IngestDouble


class Shaped(nn.Module):
    """A layer, and beside its output what `shape` makes of that."""

    def __init__(self, shape: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.shape = nn.Linear(4, 4), shape

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        y = self.layer(x)
        return y, self.shape(y.detach())


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def trained(model: nn.Module, handle: rangewatch.Handle | None = None, steps: int = 3) -> list[Tensor]:
    """Outputs, and parameters after the last step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(torch.linspace(-1, 1, 8).reshape(2, 4))
        output.sum().backward()
        optimizer.step()
        seen.append(output.detach())
        if handle is not None:
            handle.step()
    return seen + [parameter.detach().clone() for parameter in model.parameters()]


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


class TestTensors:
    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("backend", ["auto", "device"])
    @pytest.mark.parametrize(
        ("shape", "reason"),
        [
            (lambda y: y.to("meta"), "meta tensor"),
            (lambda y: y.to_sparse(), "sparse coo tensor"),
            (lambda y: y.to_sparse_csr(), "sparse csr tensor"),
            (lambda y: y.to_mkldnn(), "mkldnn tensor"),
            (lambda y: torch.quantize_per_tensor(y, 0.1, 0, torch.quint8), "quantized tensor"),
            (lambda y: torch.complex(y, y), "complex tensor"),
            (lambda y: torch.complex(y, y).to(torch.complex32), "complex tensor"),
            (lambda y: torch.nested.nested_tensor([y[0], y[1]]), "nested tensor"),
        ],
    )
    def test_are_not_observed_and_it_is_said_why(
        self, ingest: IngestDouble, shape: Callable[[Tensor], Any], reason: str, backend: str
    ) -> None:
        model = Shaped(shape)
        with rangewatch.attach(model, url=ingest.url, level="frames", backend=backend) as handle:
            for _ in range(2):
                model(torch.ones(2, 4))[0].sum().backward()
                handle.step()
            assert reason in handle.stats()["not_observed"][""]
            assert handle.stats()["faults"] == {}
        assert reason in ingest.events("not_observed")[-1].data[""]
        assert sorted(ingest.tensors()["", "output", 0]) == [0, 1], "the tensor beside it is"

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize(
        "shape",
        [
            lambda y: y[:0],
            lambda y: y.sum(),
            lambda y: torch.as_strided(y, (3, 3), (1, 1)),
            lambda y: y > 0,
            lambda y: y.to(torch.float8_e4m3fn),
        ],
    )
    def test_odd_shapes_harm_nobody(self, ingest: IngestDouble, shape: Callable[[Tensor], Any]) -> None:
        model = Shaped(shape)
        with rangewatch.attach(model, url=ingest.url, level="frames", full_every=1) as handle:
            model(torch.ones(2, 4))[0].sum().backward()
            handle.step()
            assert handle.stats()["faults"] == {}
        assert sorted(ingest.tensors()["", "output", 0]) == [0]

    @pytest.mark.slow  # torch imports its references for it
    def test_a_whole_model_on_meta(self, ingest: IngestDouble) -> None:
        model = net().to("meta")
        with rangewatch.attach(model, url=ingest.url, level="frames") as handle:
            model(torch.ones(2, 4, device="meta")).sum().backward()
            handle.step()
            assert "meta tensor" in handle.stats()["not_observed"]["0"]
            assert handle.stats()["faults"] == {}


FREED = """
import rangewatch, torch
class Frees(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        freed = y.detach().clone()
        freed.untyped_storage().resize_(0)  # as sharding and offloading do with what they will bring back
        return y, freed
model = Frees(64, 64)
handle = rangewatch.attach(model, url={url!r}, backend={backend!r}, full_every=1)
for _ in range(2):
    model(torch.ones(64, 64))[0].sum().backward()
    handle.step()
assert handle.stats()["faults"] == {{}}, handle.stats()
assert "freed" in handle.stats()["not_observed"][""]
handle.detach()
"""


class Refuses(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError("no")


class TestWhatCannotBeRead:
    @pytest.mark.parametrize("backend", ["auto", "device"])
    def test_a_tensor_that_was_freed(self, ingest: IngestDouble, backend: str) -> None:
        script = FREED.format(url=ingest.url, backend=backend)
        done = forked.rank.run("-c", script)
        assert done.returncode == 0, done.stderr

    def test_one_element_that_stands_for_a_trillion(self, ingest: IngestDouble) -> None:
        """Were they walked one by one, the test's time limit would end this."""
        model = Shaped(lambda y: y.new_tensor([[2.0, float("nan")]])[:, :, None].expand(1 << 20, 2, 1 << 20))
        with rangewatch.attach(model, url=ingest.url, full_every=1) as handle:
            model(torch.ones(2, 4))
            handle.step()
            assert handle.stats()["faults"] == {}
        cell = next(cells[0] for cells in ingest.tensors().values() if cells[0]["numel"] > 1e9)
        assert (cell["amin"], cell["amax"], cell["nan_count"], cell["full_numel"]) == (2.0, 2.0, 2.0**40, 2.0**41)
        assert (cell["sum_sq"], cell["zero_count"]) == (4 * 2.0**40, 0.0)

    def test_a_dtype_of_another_kind(self, ingest: IngestDouble) -> None:
        model = Shaped(lambda y: torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
        with rangewatch.attach(model, url=ingest.url) as handle:
            model(torch.ones(2, 4))
            handle.step()
            assert "output: float4_e2m1fn_x2 tensor" in handle.stats()["not_observed"].values()

    def test_a_subclass_that_refuses_every_operation(self, ingest: IngestDouble) -> None:
        """Its values are there all the same."""
        model = Shaped(lambda y: torch.full_like(y, 7.0).as_subclass(Refuses))
        with rangewatch.attach(model, url=ingest.url) as handle:
            model(torch.ones(2, 4))
            handle.step()
        assert 7.0 in [cells[0]["amax"] for cells in ingest.tensors().values()]


class TestModules:
    def test_one_that_raises_inside_forward(self, ingest: IngestDouble) -> None:
        class Raises(nn.Module):
            fails = True

            def forward(self, x: Tensor) -> Tensor:
                if self.fails:
                    raise KeyError("lost")
                return x

        model = net()
        model.insert(1, Raises())
        with rangewatch.attach(model, url=ingest.url, level="frames") as handle:
            with pytest.raises(KeyError, match="lost"):
                model(torch.ones(2, 4))
            model[1].fails = False  # type: ignore[assignment]
            assert_same(trained(model, handle), trained(net()))
            assert handle.stats()["faults"] == {}
        assert sorted(ingest.tensors()["3", "output", 0]) == [0, 1, 2]

    def test_renamed_while_training(self, ingest: IngestDouble) -> None:
        model, plain = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
        plain.load_state_dict(model.state_dict())
        with rangewatch.attach(model, url=ingest.url, ship_interval_s=0) as handle:
            for each in (model, plain):
                child = each[0]
                del each[0]
                each.add_module("renamed", child)
            assert_same(trained(model, handle), trained(plain))
            assert handle.stats()["faults"] == {}
        names = {fqn for fqn, kind, _ in ingest.tensors() if kind == "output" and fqn}
        assert names & {"0", "renamed"}, "under one name or the other, it is recorded"

    @pytest.mark.parametrize(
        "modules",
        [
            2_000,
            pytest.param(20_000, marks=pytest.mark.slow),
            pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(300)]),
        ],
    )
    def test_very_many(self, ingest: IngestDouble, modules: int) -> None:
        model = nn.Sequential(nn.Linear(1, 1), *[nn.Identity() for _ in range(modules - 2)])
        with rangewatch.attach(model, url=ingest.url, budget_percent=100) as handle:
            for _ in range(2):
                model(torch.ones(1, 1)).sum().backward()
                handle.step()
            stats = handle.stats()
        assert stats["faults"] == {} and stats["not_observed"] == {} and stats["dropped"] == {}
        assert stats["tensors"] >= modules
        assert not any(module._forward_hooks for module in model.modules())


class TestHooksOfOthers:
    def test_one_that_raises(self, ingest: IngestDouble) -> None:
        model = net()
        with rangewatch.attach(model, url=ingest.url) as handle:
            hook = model[0].register_forward_hook(lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                model(torch.ones(2, 4))
            hook.remove()
            assert_same(trained(model, handle), trained(net()))

    @pytest.mark.parametrize("comes_first", [True, False])
    def test_one_that_changes_the_output(self, ingest: IngestDouble, comes_first: bool) -> None:
        plain, model = net(), net()
        plain[0].register_forward_hook(lambda module, inputs, output: output * 2)
        if comes_first:
            model[0].register_forward_hook(lambda module, inputs, output: output * 2)
        with rangewatch.attach(model, url=ingest.url) as handle:
            if not comes_first:
                model[0].register_forward_hook(lambda module, inputs, output: output * 2)
            assert_same(trained(model, handle), trained(plain))
            assert handle.stats()["faults"] == {}

    @pytest.mark.filterwarnings("ignore:Full backward hook is firing")
    def test_full_backward_hooks(self, ingest: IngestDouble) -> None:
        plain, model = net(), net()
        seen: dict[int, list[Any]] = {}
        with rangewatch.attach(model, url=ingest.url) as handle:
            for each in (plain, model):
                kept = seen[id(each)] = []
                for module in each:
                    module.register_full_backward_hook(lambda m, gi, go, kept=kept: kept.append(go[0].clone()))
                    module.register_full_backward_pre_hook(lambda m, go, kept=kept: kept.append(go[0].clone()))
            assert_same(trained(model, handle), trained(plain))
            assert_same(seen[id(model)], seen[id(plain)])
            assert handle.stats()["faults"] == {}

    @pytest.mark.parametrize("is_late", [True, False])
    @pytest.mark.parametrize(
        "change",
        [
            lambda layer: parametrizations.weight_norm(layer),
            lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
            lambda layer: parametrize.register_parametrization(layer, "weight", nn.Tanh()),
        ],
    )
    def test_what_replaces_a_parameter(self, ingest: IngestDouble, change: Callable[[Any], Any], is_late: bool) -> None:
        plain, model = net(), net()
        change(plain[0])
        if not is_late:
            change(model[0])
        with rangewatch.attach(model, url=ingest.url, level="frames", weight_every=1) as handle:
            if is_late:
                change(model[0])
            assert_same(trained(model, handle), trained(plain))
            assert handle.stats()["faults"] == {}
        assert sorted(ingest.tensors()["0", "output", 0]) == [0, 1, 2]

    def test_functional_call(self, ingest: IngestDouble) -> None:
        plain, model = net(), net()
        values = {name: torch.full_like(each, 0.5) for name, each in model.named_parameters()}
        with rangewatch.attach(model, url=ingest.url, level="frames") as handle:
            found = torch.func.functional_call(model, values, torch.ones(2, 4))
            handle.step()
            assert torch.equal(found, torch.func.functional_call(plain, values, torch.ones(2, 4)))
            assert handle.stats()["faults"] == {}


def test_a_scaler_swapped_mid_run(ingest: IngestDouble) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (4.0, 8.0))
    with rangewatch.attach(model, optimizer, scaler=first, url=ingest.url) as handle:
        for scaler in (first, first, second, second, second):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert handle.stats()["faults"] == {}
    assert second.get_scale() == 8.0
    assert len(ingest.tensors()["0", "output", 0]) >= 4, "steps are still told apart, but for the one at the swap"


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_that_has_trained_carries_no_agent(
    ingest: IngestDouble, clone: Callable[[nn.Module], nn.Module]
) -> None:
    model = net()
    with rangewatch.attach(model, url=ingest.url, level="frames") as handle:
        trained(model, handle)
        other = clone(model)
        before = handle.stats()
        trained(other)
        assert handle.stats() == before
        hooks = [hook for module in other.modules() for hook in module._forward_hooks.values()]
        assert not any(isinstance(hook, Guarded) for hook in hooks)
        with rangewatch.attach(other, url=ingest.url, run="copy") as second:
            trained(other, second)
            assert second.stats()["faults"] == {} and second.stats()["step"] == 3


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_a_model_of_torchscript_is_trained_on_and_its_modules_are_said_not_to_be_observed(ingest: IngestDouble) -> None:
    model = torch.jit.script(net())
    with rangewatch.attach(model, url=ingest.url, quiet=True) as handle:
        seen = trained(model, handle)
        assert handle.stats()["faults"] == {} and handle.stats()["not_observed"]["0"] == "a ScriptModule"
    assert_same(seen, trained(torch.jit.script(net())))
