"""The callback in real Lightning trainers, of both names that Lightning has."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rangewatch.integrations.lightning import RangewatchCallback
from tests.agent.ingest_double import IngestDouble

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own

ROWS, BATCH, ACCUMULATION = 24, 2, 2
EPOCH_STEPS = ROWS // BATCH // ACCUMULATION


class Tiny(lightning.pytorch.LightningModule):
    """Dropout, so that a random number drawn by anybody else would show in the losses."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.losses: list[float] = []
        self.fails_at: int | None = None

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        if self.global_step == self.fails_at:
            raise ArithmeticError("the data is bad")
        loss = (self.net(batch[0]) - 20).pow(2).mean()
        self.losses.append(float(loss.detach()))
        self.log("loss", loss, on_step=True, on_epoch=True)
        if self.global_step == 1:
            self.log("rare", 7.0)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("val_loss", self.net(batch[0]).pow(2).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.001)


class Old(pytorch_lightning.LightningModule):
    """For a trainer of `pytorch_lightning`, which takes its own modules only."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss: Tensor = self.net(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.001)


class Silent(Tiny):
    """Logs nothing: torch 2.13 cannot compile `self.log` of Lightning 2.6."""

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return (self.net(batch[0]) - 20).pow(2).mean()


class TwoOptimizers(Tiny):
    """Manual optimization: each batch steps both."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], index: int) -> None:
        for optimizer in self.optimizers():
            loss = (self.net(batch[0]) - 20).pow(2).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(layer.parameters(), lr=0.001) for layer in (self.net[0], self.net[3])]


class OwnOptimizer(Tiny):
    """Manual optimization with an optimizer that Lightning knows nothing of; `configured` is what it is told of."""

    def __init__(self, configured: Any) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.automatic_optimization, self.configured = False, configured
        self.own = torch.optim.SGD(self.net.parameters(), lr=0.001)

    def training_step(self, batch: list[Tensor], index: int) -> None:
        self.own.zero_grad()
        loss = super().training_step(batch, index)
        self.manual_backward(loss)
        self.own.step()
        for optimizer in self.trainer.optimizers:
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return self.configured


def elsewhere() -> torch.optim.Optimizer:
    """One of parameters that are not the module's."""
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.001)


class AndAnother(TwoOptimizers):
    """The second optimizer has none of the module's parameters; Lightning counts its steps all the same."""

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.net.parameters(), lr=0.001), elsewhere()]


def rows() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.sin(torch.arange(ROWS * 4.0)).view(ROWS, 4)), batch_size=BATCH)


def trainer(callbacks: list[Any], library: ModuleType = lightning.pytorch, **arguments: Any) -> Any:
    defaults = {
        "max_epochs": 2, "accumulate_grad_batches": ACCUMULATION, "accelerator": "cpu", "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return library.Trainer(callbacks=callbacks, **{**defaults, **arguments})


def fit(callbacks: list[Any], module: Any = None, ckpt_path: Path | None = None, **arguments: Any) -> Any:
    torch.manual_seed(0)
    trained = trainer(callbacks, **arguments)
    trained.fit(Tiny() if module is None else module, rows(), rows(), ckpt_path=ckpt_path)
    return trained


def test_steps_are_those_of_global_step_and_logs_belong_to_them(ingest: IngestDouble) -> None:
    """The sanity check at the start and the validation of each epoch are kept apart."""
    module = Tiny()
    trained = fit([RangewatchCallback(run="tiny", url=ingest.url)], module)
    steps = list(range(2 * EPOCH_STEPS))
    assert trained.global_step == len(steps)
    assert sorted(ingest.series("wall_time_s")) == steps
    for fqn, kind in (("net.0", "output"), ("net.0", "grad_output"), ("net.3.weight", "grad")):
        cells = ingest.tensors()[fqn, kind, 0]
        assert sorted(cells) == steps
        assert {cell["call_count"] for cell in cells.values()} == {ACCUMULATION}
    assert list(ingest.series("loss").items()) == list(enumerate(module.losses[1::ACCUMULATION]))
    epoch_ends = [EPOCH_STEPS - 1, 2 * EPOCH_STEPS - 1]
    assert sorted(ingest.series("val_loss")) == sorted(ingest.series("loss_epoch")) == epoch_ends
    half = len(module.losses) // 2
    assert ingest.series("loss_epoch")[epoch_ends[0]] == pytest.approx(sum(module.losses[:half]) / half, rel=1e-5)
    assert min(ingest.series("rare")) == 1
    assert {opening.info.run for opening in ingest.openings} == {"tiny"}
    assert len(ingest.events("finished")) == 1 and not ingest.events("failed")


def test_a_validation_in_the_middle_of_an_epoch_belongs_to_the_step_before_it(ingest: IngestDouble) -> None:
    fit([RangewatchCallback(url=ingest.url)], max_epochs=1, val_check_interval=2 * ACCUMULATION)
    assert sorted(ingest.series("val_loss")) == [1, 3, 5]


def test_training_is_the_same_to_the_last_bit_with_the_server_there_away_or_no_callback(ingest: IngestDouble) -> None:
    def train(callbacks: list[Any]) -> tuple[list[float], list[Tensor]]:
        torch.manual_seed(0)
        module = Tiny()
        fit(callbacks, module)
        return module.losses, [each.detach() for each in module.parameters()]

    away = IngestDouble()
    away.stop()
    plain = train([])
    for url in (ingest.url, away.url):
        losses, parameters = train([RangewatchCallback(url=url, full_every=1)])
        assert losses == plain[0]
        assert all(torch.equal(one, other) for one, other in zip(parameters, plain[1], strict=True))
    assert ingest.series("loss")


def test_a_trainer_of_pytorch_lightning_takes_the_callback_too(ingest: IngestDouble) -> None:
    trained = fit([RangewatchCallback(url=ingest.url)], Old(), library=pytorch_lightning, max_steps=2)
    assert type(trained).__module__.startswith("pytorch_lightning")
    assert sorted(ingest.tensors()["net", "output", 0]) == sorted(ingest.series("loss")) == [0, 1]


def test_a_resumed_training_goes_on_with_its_numbers(ingest: IngestDouble, tmp_path: Path) -> None:
    checkpoint = tmp_path / "one_epoch.ckpt"
    fit([RangewatchCallback(url=ingest.url, run="r")], max_epochs=1).save_checkpoint(checkpoint)
    resumed = fit([RangewatchCallback(url=ingest.url, run="r")], ckpt_path=checkpoint)
    assert sorted(ingest.series("wall_time_s")) == list(range(resumed.global_step)) == list(range(2 * EPOCH_STEPS))
    assert len({opening.info.incarnation for opening in ingest.openings}) == 2


def test_with_several_optimizers_a_step_is_one_of_each_also_when_resumed(ingest: IngestDouble, tmp_path: Path) -> None:
    checkpoint, manual = tmp_path / "two.ckpt", {"accumulate_grad_batches": 1}
    first = fit([RangewatchCallback(url=ingest.url, run="r")], TwoOptimizers(), max_epochs=1, **manual)
    first.save_checkpoint(checkpoint)
    fit([RangewatchCallback(url=ingest.url, run="r")], TwoOptimizers(), checkpoint, **manual)
    assert first.global_step == 2 * ROWS // BATCH
    assert sorted(ingest.series("wall_time_s")) == list(range(2 * ROWS // BATCH))


@pytest.mark.parametrize("configured", [None, [], [elsewhere()]], ids=["none", "empty", "elsewhere"])
def test_without_an_optimizer_of_the_modules_a_step_is_a_batch(
    ingest: IngestDouble, tmp_path: Path, configured: Any
) -> None:
    """Lightning puts an optimizer without parameters in for None. None of these is any reason to fail the fit."""
    manual = {"accumulate_grad_batches": 1, "max_epochs": 1}
    plain, module = OwnOptimizer(configured), OwnOptimizer(configured)
    fit([], plain, **manual)
    first = fit([RangewatchCallback(url=ingest.url, run="r")], module, **manual)
    assert module.losses == plain.losses
    batches = list(range(ROWS // BATCH))
    assert sorted(ingest.series("wall_time_s")) == sorted(ingest.tensors()["net.3.weight", "grad", 0]) == batches
    assert list(ingest.series("loss").items()) == list(enumerate(module.losses))
    checkpoint = tmp_path / "own.ckpt"
    first.save_checkpoint(checkpoint)
    resumed = OwnOptimizer(configured)
    fit([RangewatchCallback(url=ingest.url, run="r")], resumed, checkpoint, **manual | {"max_epochs": 2})
    assert list(ingest.series("loss").items()) == list(enumerate(module.losses + resumed.losses))


def test_an_optimizer_of_other_parameters_is_left_out(ingest: IngestDouble, tmp_path: Path) -> None:
    checkpoint, manual = tmp_path / "another.ckpt", {"accumulate_grad_batches": 1}
    first = fit([RangewatchCallback(url=ingest.url, run="r")], AndAnother(), max_epochs=1, **manual)
    first.save_checkpoint(checkpoint)
    fit([RangewatchCallback(url=ingest.url, run="r")], AndAnother(), checkpoint, **manual)
    assert first.global_step == 2 * ROWS // BATCH
    assert sorted(ingest.series("wall_time_s")) == list(range(2 * ROWS // BATCH))


def test_the_loss_scaler_is_found(ingest: IngestDouble) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    trained = fit([RangewatchCallback(url=ingest.url)], plugins=[plugin], max_epochs=1)
    scales, found_inf = ingest.series("loss_scale"), ingest.series("found_inf")
    assert sorted(scales) == sorted(ingest.series("wall_time_s")) == list(range(EPOCH_STEPS))
    assert scales[0] == 2.0**16 and found_inf[0] == 1.0, "40 * 2**16 is beyond fp16"
    assert found_inf[EPOCH_STEPS - 1] == 0.0
    assert trained.global_step == EPOCH_STEPS


def test_with_a_loss_scaler_each_optimizers_step_is_one_also_when_resumed(ingest: IngestDouble, tmp_path: Path) -> None:
    """As Lightning counts: it updates the scaler for each optimizer."""
    checkpoint = tmp_path / "scaled.ckpt"
    for epochs, ckpt_path in ((1, None), (2, checkpoint)):
        plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
        arguments = {"accumulate_grad_batches": 1, "max_epochs": epochs, "plugins": [plugin]}
        trained = fit([RangewatchCallback(url=ingest.url, run="r")], TwoOptimizers(), ckpt_path, **arguments)
        trained.save_checkpoint(checkpoint)
    assert sorted(ingest.series("loss_scale")) == list(range(trained.global_step)) == list(range(4 * ROWS // BATCH))


def test_a_compiled_module_is_read(ingest: IngestDouble) -> None:
    compiled = torch.compile(Silent(), backend="aot_eager")
    fit([RangewatchCallback(url=ingest.url)], compiled, max_steps=2)
    for fqn, kind in (("net.0", "output"), ("net.0", "grad_output"), ("net.3.weight", "grad")):
        assert sorted(ingest.tensors()[fqn, kind, 0]) == [0, 1]


def test_an_exception_fails_the_run(ingest: IngestDouble) -> None:
    module = Tiny()
    module.fails_at = 2
    callback = RangewatchCallback(url=ingest.url)
    with pytest.raises(ArithmeticError):
        fit([callback], module)
    assert [event.message for event in ingest.events("failed")] == ["ArithmeticError: the data is bad"]
    assert callback.handle is None and sorted(ingest.series("loss")) == [0, 1]


def test_validation_alone_attaches_nothing(ingest: IngestDouble) -> None:
    trainer([RangewatchCallback(url=ingest.url)]).validate(Tiny(), rows(), verbose=False)
    assert not ingest.requests


def test_two_callbacks_are_refused(ingest: IngestDouble) -> None:
    with pytest.raises(ValueError, match="attached already"):
        fit([RangewatchCallback(url=ingest.url), RangewatchCallback(url=ingest.url)])


def test_without_lightning_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "rangewatch.integrations.lightning")
    with pytest.raises(ImportError, match="pip install lightning"):
        import rangewatch.integrations.lightning  # noqa: F401
