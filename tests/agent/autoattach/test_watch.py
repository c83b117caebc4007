"""What an unedited script does is found, and attached to before its first forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.autoattach import watch as watching
from rangewatch.autoattach.watch import Watch
from rangewatch.core.guard import Guard
from tests.agent.ingest_double import IngestDouble


def model() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def train(module: Callable[..., Any], optimizer: Any, steps: int = 3, scaler: Any = None) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = module(torch.ones(2, 4)).square().mean()
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.fixture
def watch(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setenv("RANGEWATCH_URL", ingest.url)
    monkeypatch.setenv("RANGEWATCH_RUN", "auto")
    monkeypatch.setenv("RANGEWATCH_SHIP_INTERVAL_S", "0")
    own = torch.optim.Optimizer.__init__, torch.amp.GradScaler.__init__, torch.compile, nn.Module.compile
    made = Watch()
    made.install()
    yield made
    made.end()
    for handle in made._attached:
        handle.detach()
    assert own == (torch.optim.Optimizer.__init__, torch.amp.GradScaler.__init__, torch.compile, nn.Module.compile)


def hooks_left(module: nn.Module) -> int:
    return sum(len(each._forward_pre_hooks) for each in module.modules())


def test_it_attaches_before_the_first_forward(
    watch: Watch, ingest: IngestDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    one = model()
    optimizer = torch.optim.AdamW(one.parameters())
    assert not watch._attached
    losses = train(one, optimizer)
    (handle,) = watch._attached
    assert handle.stats()["step"] == 3
    handle.detach()
    assert {step for cells in ingest.tensors().values() for step in cells} == {0, 1, 2}
    assert ("0", "output", 0) in ingest.tensors() and ("2.weight", "grad", 0) in ingest.tensors()
    assert capsys.readouterr().err == "rangewatch: attached to Sequential with AdamW\n"
    watch.end()
    other = model()
    assert losses == train(other, torch.optim.AdamW(other.parameters())), "the same bits"


def test_a_scaler_that_comes_after_the_optimizer_is_known(watch: Watch, ingest: IngestDouble) -> None:
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    train(one, optimizer, scaler=scaler)
    watch._attached[0].detach()
    assert ingest.openings[0].info.loss_scaled
    assert set(ingest.series("loss_scale").values()) == {64.0}


def test_of_a_module_inside_another_the_outer_one_is_watched(watch: Watch, ingest: IngestDouble) -> None:
    class Outer(nn.Module):
        """As Lightning's, which is never called itself."""

        def __init__(self) -> None:
            super().__init__()
            self.net = model()

    outer = Outer()
    train(outer.net, torch.optim.SGD(outer.parameters(), 0.1))
    watch._attached[0].detach()
    assert ("net.0", "output", 0) in ingest.tensors()


@pytest.mark.parametrize("first", ["compile", "optimizer"])
def test_what_is_compiled_is_attached_before_its_graph(watch: Watch, ingest: IngestDouble, first: str) -> None:
    one = model()
    if first == "compile":
        compiled = torch.compile(one, backend="eager", fullgraph=True)
        optimizer = torch.optim.SGD(one.parameters(), 0.1)
    else:
        optimizer = torch.optim.SGD(one.parameters(), 0.1)
        compiled = torch.compile(one, backend="eager", fullgraph=True)
    train(compiled, optimizer)
    watch._attached[0].detach()
    assert {"output", "grad"} <= {kind for _, kind, _ in ingest.tensors()}


def test_what_cannot_be_attached_is_said_and_left_alone(
    watch: Watch, ingest: IngestDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    one = model()
    one[0].compile(backend="eager")
    losses = train(one, torch.optim.SGD(one.parameters(), 0.1))
    assert len(losses) == 3 and not watch._attached and hooks_left(one) == 0
    said = capsys.readouterr().err
    assert said.startswith("rangewatch: not attached to Sequential: ") and "compiled already" in said
    assert said.endswith("The script runs as it is\n") and said.count("\n") == 1


def test_a_wrong_option_is_said_and_the_script_runs(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANGEWATCH_SHIP_EVERY", "3")
    one = model()
    assert len(train(one, torch.optim.SGD(one.parameters(), 0.1))) == 3
    assert "ship_every=3: must be 1, 8 or 64. The script runs as it is" in capsys.readouterr().err


def test_a_script_that_attaches_itself_is_left_to_it(watch: Watch, ingest: IngestDouble) -> None:
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), 0.1)
    with rangewatch.attach(one, optimizer) as handle:
        train(one, optimizer)
        assert handle.stats()["step"] == 3
    assert not watch._attached and len({each.info.incarnation for each in ingest.openings}) == 1


def test_a_fault_of_ours_is_none_of_the_script(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(Guard, "fatal", False)
    monkeypatch.setattr(watching, "_outermost", fails)
    one = model()
    assert len(train(one, torch.optim.SGD(one.parameters(), 0.1))) == 3
    assert not watch._attached


def test_two_models_with_their_own_optimizers_are_two_runs(
    watch: Watch, ingest: IngestDouble, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = model(), nn.Linear(4, 1)
    optimizers = torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(two.parameters(), 0.1)
    train(one, optimizers[0])
    train(two, optimizers[1])
    for handle in watch._attached:
        handle.detach()
    assert sorted(each.info.run for each in ingest.openings if each.info.rank == 0)[0] == "auto"
    assert len({each.info.run for each in ingest.openings}) == 2


def test_a_copy_of_the_model_has_no_hook_of_ours(watch: Watch) -> None:
    import copy

    one = model()
    optimizer = torch.optim.SGD(one.parameters(), 0.1)
    ema = copy.deepcopy(one)
    ema(torch.ones(1, 4))
    assert not watch._attached, "only what is trained"
    train(one, optimizer, 1)
    assert len(watch._attached) == 1


@pytest.mark.parametrize(
    ("optimizers", "said"), [(0, "it made no torch optimizer"), (1, "were never called")], ids=["none", "uncalled"]
)
def test_at_the_end_it_says_that_nothing_was_attached(
    watch: Watch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, optimizers: int, said: str
) -> None:
    monkeypatch.setattr(watching, "_is_launcher", lambda: False)
    monkeypatch.delitem(__import__("sys").modules, "rangewatch.api.attachment")
    one = model()
    made = [torch.optim.SGD(one.parameters(), 0.1) for _ in range(optimizers)]
    watch._at_exit()
    assert said in capsys.readouterr().err
    assert len(made) == optimizers


def test_only_a_rank_speaks(watch: Watch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "3")
    watch._say("a line")
    assert capsys.readouterr().err == ""
