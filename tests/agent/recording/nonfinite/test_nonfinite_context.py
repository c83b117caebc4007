"""What the agent tells of the surroundings of a first NaN or Inf: event `nonfinite`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.core import limits
from rangewatch.recording.weights import are_finite
from tests.agent.ingest_double import IngestDouble

NAN, INF = float("nan"), float("inf")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.root, self.last = nn.Linear(4, 4), Root(), nn.Linear(4, 2)

    def forward(self, x: Tensor, *, shift: float = 1.0) -> Tensor:
        return self.last(self.root(x=self.first(x).abs() + shift))


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 1.0 / x.clamp(min=0.0)


def reported(ingest: IngestDouble) -> list[tuple[int, dict[str, Any]]]:
    return [(event.step, event.data) for event in ingest.events("nonfinite")]


def by_name(facts: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in facts}


def test_nothing_while_all_is_finite(ingest: IngestDouble) -> None:
    model = Net()
    with rangewatch.attach(model, url=ingest.url) as handle:
        model(torch.randn(3, 4)).sum().backward()
        handle.step()
    assert reported(ingest) == []


def test_the_inputs_of_the_module_and_of_the_model(ingest: IngestDouble) -> None:
    model = Net()
    x = torch.randn(3, 4)
    with rangewatch.attach(model, url=ingest.url) as handle:
        with torch.no_grad():
            model.first.weight.zero_(), model.first.bias.copy_(torch.tensor([0.0, 1.0, -2.0, 3.0]))
        model(x, shift=0.0)
        handle.step()
    ((step, data),) = reported(ingest)
    assert (step, data["fqn"], data["kind"], data["index"]) == (0, "root", "output", 0)
    (own,) = data["inputs"]
    assert own == {
        "name": "x", "dtype": "float32", "shape": [3, 4], "numel": 12, "amax": 3.0, "nan_count": 0, "inf_count": 0,
        "zero_count": 3, "negative_count": 0,
    }  # fmt: skip
    (whole,) = data["model_inputs"]
    assert (whole["name"], whole["amax"]) == ("input[0]", x.abs().max().item())
    assert data["weights"] == []


def test_a_weight_and_the_optimizer_that_has_it(ingest: IngestDouble) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25, eps=0.5)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(2):
            if step == 1:
                with torch.no_grad():
                    model.last.weight[0, 1] = NAN
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    ((step, data),) = reported(ingest)
    assert (step, data["fqn"]) == (1, "last")
    weights = by_name(data["weights"])
    assert set(weights) == {"last.weight", "last.bias"}
    assert [weights[name]["nan_count"] for name in ("last.weight", "last.bias")] == [1, 0]
    known = data["optimizer"]
    assert (known["class"], known["parameter"], known["lr"], known["eps"]) == ("Adam", "last.weight", 0.25, 0.5)
    state = by_name(known["state"])
    expected = optimizer.state[model.last.weight]["exp_avg_sq"]
    assert state["exp_avg_sq"]["numel"] == expected.numel()


@pytest.mark.parametrize("is_bad", [True, False])
def test_what_the_optimizer_was_given_where_that_was_not_finite(ingest: IngestDouble, is_bad: bool) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(2):
            output = model(torch.randn(3, 4)).sum()
            optimizer.zero_grad()
            output.backward()
            if step == 0 and is_bad:
                model.last.weight.grad[0] = NAN  # type: ignore[index]
            optimizer.step()
            if step == 0 and not is_bad:
                model.last.weight.data[0] = NAN
    known = reported(ingest)[0][1]["optimizer"]
    assert known["parameter"] == "last.weight"
    assert known.get("gradient", {}).get("nan_count") == (4 if is_bad else None)


def test_infinities_of_a_mask(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Identity(), nn.Softmax(-1), nn.Linear(3, 1))
    scores = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF]])
    with rangewatch.attach(model, url=ingest.url, include=["1", "2"]) as handle:
        model(scores)
        handle.step()
    ((_, data),) = reported(ingest)
    (given,) = data["inputs"]
    assert (given["inf_count"], given["negative_inf_count"], given["masked_rows"]) == (4, 4, 1)


def test_the_sign_of_infinities(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Identity(), nn.ReLU6(), nn.Linear(3, 1))
    with rangewatch.attach(model, url=ingest.url, include=["0"]) as handle:
        model(torch.tensor([[INF, -INF, 1.0], [-INF, 0.0, 1.0]]))
        handle.step()
    ((_, data),) = reported(ingest)
    assert (data["inf_count"], data["negative_inf_count"]) == (3, 2)


def test_once_while_it_lasts_and_again_when_it_comes_back(ingest: IngestDouble) -> None:
    model = Net()
    with rangewatch.attach(model, url=ingest.url) as handle:
        for bad in (0, 1, 1, 0, 1):
            model(torch.full((3, 4), NAN if bad else 1.0))
            handle.step()
    assert [step for step, _ in reported(ingest)] == [1, 4]


def test_beside_an_inf_that_is_there_at_each_step(ingest: IngestDouble) -> None:
    model = Net()
    with rangewatch.attach(model, url=ingest.url) as handle:
        for step in range(4):
            with torch.no_grad():
                model.last.bias[0] = INF
            model(torch.full((3, 4), NAN if step >= 2 else 1.0))
            handle.step()
    assert [(step, data["fqn"]) for step, data in reported(ingest)] == [(0, "last"), (2, "first")]


@pytest.mark.parametrize("kind", ["weight", "update"])
def test_a_parameter_s_row(ingest: IngestDouble, kind: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=INF if kind == "update" else 0.5)
    if kind == "weight":
        model[0].weight.data[0, 0] = NAN
    with rangewatch.attach(model, optimizer, url=ingest.url, kinds=[kind], weight_every=1):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    ((step, data),) = reported(ingest)
    assert (step, data["fqn"], data["kind"]) == (0, "0.weight", kind)
    assert (data["optimizer"]["class"], data["optimizer"]["parameter"]) == ("SGD", "0.weight")


def test_no_more_than_so_often(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NONFINITE_EVENTS", 2)
    model = Net()
    with rangewatch.attach(model, url=ingest.url) as handle:
        for bad in (1, 0) * 4:
            model(torch.full((3, 4), NAN if bad else 1.0))
            handle.step()
    assert len(reported(ingest)) == 2


def test_an_inf_that_is_allowed_is_passed_over(ingest: IngestDouble) -> None:
    model = Net()
    with rangewatch.attach(model, url=ingest.url, allow_inf=["first"]) as handle:
        with torch.no_grad():
            model.first.bias[0] = INF
        model(torch.randn(3, 4))
        handle.step()
        model(torch.full((3, 4), NAN))
        handle.step()
    assert [(step, data["fqn"]) for step, data in reported(ingest)] == [(1, "first")]


def test_a_gradient_is_none_of_its_business(ingest: IngestDouble) -> None:
    model = Net()
    with rangewatch.attach(model, url=ingest.url) as handle:
        (model(torch.randn(3, 4)).sum() * INF).backward()
        handle.step()
        model(torch.full((3, 4), NAN))
        handle.step()
    assert [step for step, _ in reported(ingest)] == [1]


def test_inside_a_compiled_model_the_weights_are_seen(ingest: IngestDouble) -> None:
    model = Net()
    x = torch.randn(3, 4)
    x[1, 2] = NAN
    with rangewatch.attach(model, url=ingest.url) as handle:
        torch.compile(model, backend="aot_eager", fullgraph=True)(x)
        handle.step()
        assert handle.stats()["faults"] == {}
    ((_, data),) = reported(ingest)
    assert data["fqn"] == "first" and "inputs" not in data
    assert by_name(data["model_inputs"])["input[0]"]["nan_count"] == 1
    assert set(by_name(data["weights"])) == {"first.weight", "first.bias"}
    torch._dynamo.reset()


class TestOnAnAccelerator:
    """Where the host learns of it some steps later."""

    @pytest.mark.parametrize("is_bad", [False, True])
    def test_whether_weights_are_finite_is_looked_at_once(self, ingest: IngestDouble, is_bad: bool) -> None:
        model = Net()
        if is_bad:
            model.last.bias.data[1] = INF
        with rangewatch.attach(model, url=ingest.url, backend="device", ship_interval_s=0) as handle:
            steps = 0
            while not ingest.series("weights_finite"):  # the test's time limit ends it
                model(torch.full((3, 4), NAN))
                handle.step()
                steps += 1
            for _ in range(5):
                model(torch.full((3, 4), NAN))
                handle.step()
        ((step, value),) = ingest.series("weights_finite").items()
        assert (value, 0 < step <= steps) == (float(not is_bad), True)
        assert reported(ingest) == []
        assert {kind for _, kind, _ in ingest.tensors()} == {"output"}

    def test_not_while_all_is_finite(self, ingest: IngestDouble) -> None:
        model = Net()
        with rangewatch.attach(model, url=ingest.url, backend="device", ship_interval_s=0) as handle:
            for _ in range(20):
                model(torch.randn(3, 4))
                handle.step()
        assert ingest.series("weights_finite") == {}


@pytest.mark.parametrize("value", [1.0, NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_are_finite(dtype: torch.dtype, value: float) -> None:
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight[1, 2] = value
    model.weight = nn.Parameter(model.weight.detach().to(dtype), requires_grad=False)
    found = are_finite(model)
    assert found is not None and found.item() == float(value == 1.0)


def test_are_finite_of_nothing() -> None:
    assert are_finite(nn.Identity()) is None


class Pair(nn.Module):
    """Of which the parts are called, and never the whole, as of a GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def test_what_came_from_outside_where_only_a_part_is_called(ingest: IngestDouble) -> None:
    model, x = Pair(), torch.randn(3, 4)
    x[1, 2] = NAN
    with rangewatch.attach(model, url=ingest.url) as handle:
        model.judge(x)
        handle.step()
    ((_, data),) = reported(ingest)
    assert (data["fqn"], data["entered"]) == ("judge.0", "judge")
    assert [each["nan_count"] for each in data["model_inputs"]] == [1]


def test_what_was_computed_on_the_way_is_no_data(ingest: IngestDouble) -> None:
    model = Pair()
    with rangewatch.attach(model, url=ingest.url) as handle:
        model.judge(model.maker(torch.randn(3, 4)) * NAN)
        handle.step()
    ((_, data),) = reported(ingest)
    assert (data["entered"], data["model_inputs"]) == ("judge", [])


def test_one_element_of_a_weight_elsewhere(ingest: IngestDouble) -> None:
    model = Net()
    with torch.no_grad():
        model.first.weight[1, 2] = 2e38
    with rangewatch.attach(model, url=ingest.url) as handle:
        model(torch.full((3, 4), 10.0))
        handle.step()
    ((_, data),) = reported(ingest)
    (large,) = data["large_weights"]
    assert (large["name"], large["peak_count"]) == ("first.weight", 1)
    assert large["amax"] > 1e38 and 0 < large["rest_amax"] < 1


class Table(nn.Module):
    """With a buffer that no checkpoint has, a mask and a limit that is none, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angle", torch.ones(4), persistent=False)
        self.register_buffer("mask", torch.tensor([0.0, -INF, 0.0, 0.0]), persistent=False)
        self.register_buffer("limit", torch.full((4,), INF), persistent=False)
        self.register_buffer("mean", torch.zeros(4))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean += 0.1 * (x.mean(0) - self.mean)
        return torch.minimum(x * self.angle, self.limit) * self.weight - self.mean + torch.softmax(self.mask, 0)


@pytest.mark.parametrize("bad", ["angle", "mean", "input", "mean in eval", "weight"])
def test_a_buffer_that_the_forward_has_not_written(ingest: IngestDouble, bad: str) -> None:
    model = nn.Sequential(Table(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    table: Any = model[0]
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(3):
            table.train("eval" not in bad)
            if step == 2 and bad != "input":
                getattr(table, bad.split()[0]).data[1] = NAN
            model(torch.full((2, 4), NAN if (step, bad) == (2, "input") else 1.0)).sum().backward()
            optimizer.step()
    ((step, known),) = reported(ingest)
    buffers = [each["name"] for each in known["weights"] if each.get("is_buffer")]
    assert (step, known["fqn"]) == (2, "0")
    assert buffers == {"angle": ["0.angle"], "mean in eval": ["0.mean"]}.get(bad, [])


class Times(nn.Module):
    """Code that computes with a table before its module does."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x * self.table * 1e30).sin())


@pytest.mark.parametrize(
    ("table", "is_told"),
    [
        ([0.5, 1e-38, 2e37, 7e30], True),
        ([0.5, 1.0, 2e37, 2e37], False),
        ([0.5, 1.0, 3.4e38, -3.4e38], False),
        ([0.5, 1.0, -INF, INF], False),
    ],
    ids=["memory", "a value for what is far away", "limits", "infinities"],
)
def test_a_table_as_the_memory_was(ingest: IngestDouble, table: list[float], is_told: bool) -> None:
    model = nn.Sequential(Times(torch.tensor(table)))
    with rangewatch.attach(model, url=ingest.url) as handle:
        model(torch.full((3, 4), 100.0))
        handle.step()
    ((_, data),) = reported(ingest)
    listed = [(each["name"], each["is_buffer"]) for each in data["large_weights"]]
    assert (data["fqn"], listed) == ("0.out", [("0.table", True)] if is_told else [])
