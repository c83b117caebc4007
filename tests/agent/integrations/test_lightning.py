"""The callback in real Lightning trainers, of both names that Lightning has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.agent.ingest_double import IngestDouble
from tests.agent.integrations import test_callbacks
from tests.agent.integrations.lazily import Lazily

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the libraries' own

real: Any = Lazily("tests.agent.integrations.lightning_trainers")
ROWS, BATCH, ACCUMULATION = 24, 2, 2
EPOCH_STEPS = ROWS // BATCH // ACCUMULATION


def test_steps_are_those_of_global_step_and_logs_belong_to_them(ingest: IngestDouble) -> None:
    """The sanity check at the start and the validation of each epoch are kept apart."""
    module = real.Tiny()
    trained = real.fit([real.RangewatchCallback(run="tiny", url=ingest.url)], module)
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
    real.fit([real.RangewatchCallback(url=ingest.url)], max_epochs=1, val_check_interval=2 * ACCUMULATION)
    assert sorted(ingest.series("val_loss")) == [1, 3, 5]


def test_training_is_the_same_to_the_last_bit_with_the_server_there_away_or_no_callback(ingest: IngestDouble) -> None:
    def train(callbacks: list[Any]) -> tuple[list[float], list[Tensor]]:
        torch.manual_seed(0)
        module = real.Tiny()
        real.fit(callbacks, module)
        return module.losses, [each.detach() for each in module.parameters()]

    away = IngestDouble()
    away.stop()
    plain = train([])
    for url in (ingest.url, away.url):
        losses, parameters = train([real.RangewatchCallback(url=url, full_every=1)])
        assert losses == plain[0]
        assert all(torch.equal(one, other) for one, other in zip(parameters, plain[1], strict=True))
    assert ingest.series("loss")


def test_a_trainer_of_pytorch_lightning_takes_the_callback_too(ingest: IngestDouble) -> None:
    trained = real.fit(
        [real.RangewatchCallback(url=ingest.url)], real.Old(), library=real.pytorch_lightning, max_steps=2
    )
    assert type(trained).__module__.startswith("pytorch_lightning")
    assert sorted(ingest.tensors()["net", "output", 0]) == sorted(ingest.series("loss")) == [0, 1]


def test_a_resumed_training_goes_on_with_its_numbers(ingest: IngestDouble, tmp_path: Path) -> None:
    checkpoint = tmp_path / "one_epoch.ckpt"
    real.fit([real.RangewatchCallback(url=ingest.url, run="r")], max_epochs=1).save_checkpoint(checkpoint)
    resumed = real.fit([real.RangewatchCallback(url=ingest.url, run="r")], ckpt_path=checkpoint)
    assert sorted(ingest.series("wall_time_s")) == list(range(resumed.global_step)) == list(range(2 * EPOCH_STEPS))
    assert len({opening.info.incarnation for opening in ingest.openings}) == 2


def test_with_several_optimizers_a_step_is_one_of_each_also_when_resumed(ingest: IngestDouble, tmp_path: Path) -> None:
    checkpoint, manual = tmp_path / "two.ckpt", {"accumulate_grad_batches": 1}
    first = real.fit([real.RangewatchCallback(url=ingest.url, run="r")], real.TwoOptimizers(), max_epochs=1, **manual)
    first.save_checkpoint(checkpoint)
    real.fit([real.RangewatchCallback(url=ingest.url, run="r")], real.TwoOptimizers(), checkpoint, **manual)
    assert first.global_step == 2 * ROWS // BATCH
    assert sorted(ingest.series("wall_time_s")) == list(range(2 * ROWS // BATCH))


@pytest.mark.parametrize("optimizers", ["none", "empty", "elsewhere"])
def test_without_an_optimizer_of_the_modules_a_step_is_a_batch(
    ingest: IngestDouble, tmp_path: Path, optimizers: str
) -> None:
    configured = {"none": None, "empty": [], "elsewhere": [real.elsewhere()]}[optimizers]
    """Lightning puts an optimizer without parameters in for None. None of these is any reason to fail the fit."""
    manual = {"accumulate_grad_batches": 1, "max_epochs": 1}
    plain, module = real.OwnOptimizer(configured), real.OwnOptimizer(configured)
    real.fit([], plain, **manual)
    first = real.fit([real.RangewatchCallback(url=ingest.url, run="r")], module, **manual)
    assert module.losses == plain.losses
    batches = list(range(ROWS // BATCH))
    assert sorted(ingest.series("wall_time_s")) == sorted(ingest.tensors()["net.3.weight", "grad", 0]) == batches
    assert list(ingest.series("loss").items()) == list(enumerate(module.losses))
    checkpoint = tmp_path / "own.ckpt"
    first.save_checkpoint(checkpoint)
    resumed = real.OwnOptimizer(configured)
    real.fit([real.RangewatchCallback(url=ingest.url, run="r")], resumed, checkpoint, **manual | {"max_epochs": 2})
    assert list(ingest.series("loss").items()) == list(enumerate(module.losses + resumed.losses))


def test_an_optimizer_of_other_parameters_is_left_out(ingest: IngestDouble, tmp_path: Path) -> None:
    checkpoint, manual = tmp_path / "another.ckpt", {"accumulate_grad_batches": 1}
    first = real.fit([real.RangewatchCallback(url=ingest.url, run="r")], real.AndAnother(), max_epochs=1, **manual)
    first.save_checkpoint(checkpoint)
    real.fit([real.RangewatchCallback(url=ingest.url, run="r")], real.AndAnother(), checkpoint, **manual)
    assert first.global_step == 2 * ROWS // BATCH
    assert sorted(ingest.series("wall_time_s")) == list(range(2 * ROWS // BATCH))


def test_the_loss_scaler_is_found(ingest: IngestDouble) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    plugin = real.MixedPrecision("16-mixed", "cpu", scaler)
    trained = real.fit([real.RangewatchCallback(url=ingest.url)], plugins=[plugin], max_epochs=1)
    scales, found_inf = ingest.series("loss_scale"), ingest.series("found_inf")
    assert sorted(scales) == sorted(ingest.series("wall_time_s")) == list(range(EPOCH_STEPS))
    assert scales[0] == 2.0**16 and found_inf[0] == 1.0, "40 * 2**16 is beyond fp16"
    assert found_inf[EPOCH_STEPS - 1] == 0.0
    assert trained.global_step == EPOCH_STEPS


def test_with_a_loss_scaler_each_optimizers_step_is_one_also_when_resumed(ingest: IngestDouble, tmp_path: Path) -> None:
    """As Lightning counts: it updates the scaler for each optimizer."""
    checkpoint = tmp_path / "scaled.ckpt"
    for epochs, ckpt_path in ((1, None), (2, checkpoint)):
        plugin = real.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
        arguments = {"accumulate_grad_batches": 1, "max_epochs": epochs, "plugins": [plugin]}
        trained = real.fit(
            [real.RangewatchCallback(url=ingest.url, run="r")], real.TwoOptimizers(), ckpt_path, **arguments
        )
        trained.save_checkpoint(checkpoint)
    assert sorted(ingest.series("loss_scale")) == list(range(trained.global_step)) == list(range(4 * ROWS // BATCH))


def test_a_compiled_module_is_read(ingest: IngestDouble) -> None:
    compiled = torch.compile(real.Silent(), backend="aot_eager")
    real.fit([real.RangewatchCallback(url=ingest.url)], compiled, max_steps=2)
    for fqn, kind in (("net.0", "output"), ("net.0", "grad_output"), ("net.3.weight", "grad")):
        assert sorted(ingest.tensors()[fqn, kind, 0]) == [0, 1]


def test_an_exception_fails_the_run(ingest: IngestDouble) -> None:
    module = real.Tiny()
    module.fails_at = 2
    callback = real.RangewatchCallback(url=ingest.url)
    with pytest.raises(ArithmeticError):
        real.fit([callback], module)
    assert [event.message for event in ingest.events("failed")] == ["ArithmeticError: the data is bad"]
    assert callback.handle is None and sorted(ingest.series("loss")) == [0, 1]


def test_validation_alone_attaches_nothing(ingest: IngestDouble) -> None:
    real.trainer([real.RangewatchCallback(url=ingest.url)]).validate(real.Tiny(), real.rows(), verbose=False)
    assert not ingest.requests


def test_two_callbacks_are_refused(ingest: IngestDouble) -> None:
    with pytest.raises(ValueError, match="attached already"):
        real.fit([real.RangewatchCallback(url=ingest.url), real.RangewatchCallback(url=ingest.url)])


def test_the_double_of_the_quick_tests_calls_the_hooks_as_the_trainer_does() -> None:
    def recorder(hooks: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, int]]]:
        reported: list[tuple[str, int]] = []

        def emit(name: str) -> Any:
            return lambda self, trainer, *rest, **named: reported.append((name, trainer.global_step))

        return {name: emit(name) for name in hooks if name.startswith(("on_", "teardown"))}, reported

    ours = vars(real.RangewatchCallback)
    methods, there = recorder(ours)
    callback = type("Recorder", (real.lightning.pytorch.Callback,), methods)()
    real.fit([callback], limit_train_batches=4, num_sanity_val_steps=0, check_val_every_n_epoch=1)
    methods, here = recorder(ours)
    test_callbacks.fit(type("Recorder", (), methods)())
    assert here == there
