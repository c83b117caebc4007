"""The callbacks' own logic without a training of the libraries, whose import alone takes seconds; those are slow.

Transformers calls its callbacks through its own handler here, with its own state; Lightning is a double that calls the
hooks in the order that its trainer does, which test_lightning.py checks; DeepSpeed's engine is the double of
tests/agent/steps/scaler_doubles.py.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rangewatch.integrations import deepspeed
from tests.agent.ingest_double import IngestDouble
from tests.agent.steps.scaler_doubles import DeepSpeedEngine, DeepSpeedZeroOptimizer


def net() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(model: nn.Module) -> Tensor:
    return model(torch.ones(3, 2)).pow(2).mean()


class Trained:
    """As Transformers' `Trainer` calls its callbacks: two microbatches a step."""

    def __init__(self, callback: Any, first_step: int = 0) -> None:
        from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

        self.model, self.optimizer = net()
        self.handler = CallbackHandler([callback], self.model, None, self.optimizer, None)
        self.state, self.control = TrainerState(global_step=first_step), TrainerControl()

    def call(self, event: str, **given: Any) -> None:
        self.handler.call_event(event, None, self.state, self.control, **given)

    def log(self, **values: Any) -> None:
        self.call("on_log", logs=values)

    def step(self) -> None:
        for microbatch in range(2):
            if microbatch == 0:
                self.call("on_step_begin")
            loss_of(self.model).backward()
        self.optimizer.step()
        self.state.global_step += 1
        self.call("on_step_end")


def test_transformers(ingest: IngestDouble) -> None:
    from rangewatch.integrations.transformers import RangewatchCallback

    callback = RangewatchCallback(run="tiny", url=ingest.url)
    assert (callback.url, callback.handle) == (ingest.url, None)
    trained = Trained(callback, first_step=4)
    trained.call("on_train_begin")
    for _ in range(2):
        trained.step()
        trained.log(loss=float(trained.state.global_step), text="x", many=torch.ones(2))
        trained.log(loss=-1.0, eval_loss=torch.ones(1))  # it has a loss already
    assert callback.handle is not None
    trained.call("on_train_end")
    assert callback.handle is None
    assert sorted(ingest.series("wall_time_s")) == [4, 5]
    assert ingest.series("loss") == {4: 5.0, 5: 6.0} and sorted(ingest.series("eval_loss")) == [4, 5]
    assert not ingest.series("text") and not ingest.series("many")
    assert {cell["call_count"] for cell in ingest.tensors()["0", "output", 0].values()} == {2.0}
    assert {opening.info.run for opening in ingest.openings} == {"tiny"}
    assert len(ingest.events("finished")) == 1


def test_transformers_training_that_fails(ingest: IngestDouble) -> None:
    """By an exception that is caught, and by one after which another training begins."""
    from rangewatch.integrations.transformers import RangewatchCallback

    with pytest.raises(ArithmeticError), RangewatchCallback(url=ingest.url) as callback:
        Trained(callback).call("on_train_begin")
        raise ArithmeticError("the data is bad")
    trained = Trained(callback)
    trained.call("on_train_begin")
    trained.call("on_train_begin")
    trained.call("on_train_end")
    messages = [event.message for event in ingest.events("failed")]
    assert messages[0] == "ArithmeticError: the data is bad" and "another began" in messages[1]
    assert len(messages) == 2 and len(ingest.events("finished")) == 1


def test_wrong_options_are_refused_at_once() -> None:
    from rangewatch.integrations.transformers import RangewatchCallback

    for options, error in (({"start_step": 3}, TypeError), ({"colour": 1}, TypeError), ({"full_every": 0}, ValueError)):
        with pytest.raises(error, match=next(iter(options))):
            RangewatchCallback(**options)


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Our module for Lightning, with a Lightning that has nothing but the class of callbacks."""
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["lightning.pytorch"], "Callback", object, raising=False)
    name = "rangewatch.integrations.lightning"
    monkeypatch.setitem(sys.modules, name, None)  # so that what was there is there again afterwards
    del sys.modules[name]
    yield importlib.import_module(name)


def fit(
    callback: Any, *, first_step: int = 0, scaler: Any = None, optimizers: int = 1, fails_at: int | None = None
) -> SimpleNamespace:
    """As Lightning's trainer does: two epochs of two steps of two microbatches, with a validation after each epoch."""
    model, optimizer = net()
    own = [optimizer, *(torch.optim.SGD(model[0].parameters(), lr=0.1) for _ in range(optimizers - 1))][:optimizers]
    trainer = SimpleNamespace(
        global_step=first_step, callback_metrics={}, precision_plugin=SimpleNamespace(scaler=scaler),
        strategy=SimpleNamespace(model=None), optimizers=own,
        fit_loop=SimpleNamespace(total_batch_idx=first_step - 1),
    )  # fmt: skip
    callback.on_train_start(trainer, model)
    for epoch in range(2):
        callback.on_train_epoch_start(trainer, model)
        for batch in range(4):
            if trainer.global_step == fails_at:
                error = ArithmeticError("the data is bad")
                callback.on_exception(trainer, model, error)
                callback.teardown(trainer, model, "fit")
                return trainer
            callback.on_train_batch_start(trainer, model, None, batch)
            loss_of(model).backward()
            if batch % 2:
                for each in own:
                    each.step()
                trainer.global_step += len(own)
                trainer.callback_metrics |= {"loss": torch.tensor(float(trainer.global_step))}
            callback.on_train_batch_end(trainer, model, None, None, batch)
        trainer.callback_metrics |= {"val_loss": torch.tensor(float(epoch))}
        callback.on_validation_end(trainer, model)
        trainer.callback_metrics |= {"loss_epoch": torch.tensor(float(epoch))}
    callback.on_train_end(trainer, model)
    callback.teardown(trainer, model, "fit")
    return trainer


def test_lightning(ingest: IngestDouble, lightning: ModuleType) -> None:
    callback = lightning.RangewatchCallback(url=ingest.url)
    assert (callback.url, callback.handle) == (ingest.url, None)
    fit(callback, first_step=10)
    assert callback.handle is None
    assert sorted(ingest.series("wall_time_s")) == [10, 11, 12, 13]
    assert ingest.series("loss") == {10: 11.0, 11: 12.0, 12: 13.0, 13: 14.0}
    assert ingest.series("val_loss") == ingest.series("loss_epoch") == {11: 0.0, 13: 1.0}
    assert {cell["call_count"] for cell in ingest.tensors()["0", "output", 0].values()} == {2.0}
    assert len(ingest.events("finished")) == 1


def test_lightning_with_several_optimizers_or_none(ingest: IngestDouble, lightning: ModuleType) -> None:
    """Lightning counts each of several; without one of the module's a step is a batch."""
    fit(lightning.RangewatchCallback(url=ingest.url), first_step=6, optimizers=2)
    assert sorted(ingest.series("wall_time_s")) == [3, 4, 5, 6]
    ingest.batches.clear()
    fit(lightning.RangewatchCallback(url=ingest.url), optimizers=0)
    assert sorted(ingest.series("wall_time_s")) == list(range(8))


def test_lightning_training_that_fails(ingest: IngestDouble, lightning: ModuleType) -> None:
    fit(lightning.RangewatchCallback(url=ingest.url), fails_at=1)
    assert [event.message for event in ingest.events("failed")] == ["ArithmeticError: the data is bad"]
    assert sorted(ingest.series("loss")) == [0] and not ingest.events("finished")


def test_deepspeed(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    engine: Any = DeepSpeedEngine(model, DeepSpeedZeroOptimizer(model, 4.0))
    engine.global_steps = 7
    with deepspeed.attach(engine, url=ingest.url) as handle:
        for _ in range(4):
            engine.optimizer.scaled(engine.module(torch.ones(1, 1)).sum()).backward()
            engine.step()
        assert handle.stats()["step"] == 9
    assert ingest.series("loss_scale") == {7: 4.0, 8: 8.0}
    with pytest.raises(TypeError, match=r"dict has no 'module': pass what deepspeed\.initialize returned first"):
        deepspeed.attach({})


@pytest.mark.parametrize(("module", "package"), [("transformers", "transformers"), ("lightning", "lightning")])
def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    for name in ("transformers", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    name = f"rangewatch.integrations.{module}"
    monkeypatch.setitem(sys.modules, name, None)
    del sys.modules[name]
    with pytest.raises(ImportError, match=f"pip install {package}"):
        importlib.import_module(name)
