"""The callback in real Transformers trainers: what is recorded, and under which step; the training is as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.agent.ingest_double import IngestDouble
from tests.agent.integrations.lazily import Lazily

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the libraries' own

real: Any = Lazily("tests.agent.integrations.transformers_trainers")
ROWS, BATCH, ACCUMULATION = 24, 2, 2
EPOCH_STEPS = ROWS // BATCH // ACCUMULATION


def logged(trained: Any, name: str) -> dict[int, float]:
    """What the trainer has logged, by the agent's number of the step: that of `global_step` before it."""
    return {entry["step"] - 1: entry[name] for entry in trained.state.log_history if name in entry}


def test_steps_are_those_of_global_step_and_logs_belong_to_them(ingest: IngestDouble, tmp_path: Path) -> None:
    trained = real.trainer(tmp_path, [real.RangewatchCallback(run="tiny", url=ingest.url)], eval_strategy="epoch")
    trained.train()
    steps = list(range(2 * EPOCH_STEPS))
    assert trained.state.global_step == len(steps)
    assert sorted(ingest.series("wall_time_s")) == steps
    for fqn, kind in (("first", "output"), ("first", "grad_output"), ("second.weight", "grad")):
        cells = ingest.tensors()[fqn, kind, 0]
        assert sorted(cells) == steps
        assert {cell["call_count"] for cell in cells.values()} == {ACCUMULATION}, "evaluation is kept apart"
    for name in ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss"):
        assert ingest.series(name) == logged(trained, name), name
    assert sorted(ingest.series("eval_loss")) == [EPOCH_STEPS - 1, 2 * EPOCH_STEPS - 1]
    assert {opening.info.run for opening in ingest.openings} == {"tiny"}
    assert len(ingest.events("finished")) == 1 and not ingest.events("failed")


def test_logs_before_the_first_step_and_in_the_middle_of_one_move_no_others(
    ingest: IngestDouble, tmp_path: Path
) -> None:
    class InTheMiddle(real.TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trained.log({"twice": float(state.global_step)})

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trained.log({"twice": -1.0})

    evaluations = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 1}
    trained = real.trainer(tmp_path, [real.RangewatchCallback(url=ingest.url), InTheMiddle()], **evaluations)
    trained.train()
    steps = list(range(2 * EPOCH_STEPS))
    assert ingest.series("twice") == {step: float(step) for step in steps}
    assert logged(trained, "loss") == {}, "it is that of the backward"
    assert sorted(ingest.series("loss")) == sorted(ingest.series("epoch")) == steps
    evaluated = logged(trained, "eval_loss")
    assert ingest.series("eval_loss") == {step: evaluated[step if step else -1] for step in steps}


def test_training_is_the_same_to_the_last_bit_with_the_server_there_away_or_no_callback(
    ingest: IngestDouble, tmp_path: Path
) -> None:
    def train(callbacks: list[Any]) -> tuple[list[float], list[Tensor]]:
        trained = real.trainer(tmp_path, callbacks, eval_strategy="epoch")
        trained.train()
        return list(logged(trained, "loss").values()), [each.detach() for each in trained.model.parameters()]

    away = IngestDouble()
    away.stop()
    plain = train([])
    for url in (ingest.url, away.url):
        losses, parameters = train([real.RangewatchCallback(url=url, full_every=1)])
        assert losses == plain[0]
        assert all(torch.equal(one, other) for one, other in zip(parameters, plain[1], strict=True))
    assert ingest.series("loss")


def test_a_resumed_training_goes_on_with_its_numbers(ingest: IngestDouble, tmp_path: Path) -> None:
    saves = {"save_strategy": "steps", "save_steps": 4}
    real.trainer(tmp_path, [real.RangewatchCallback(url=ingest.url, run="r")], max_steps=4, **saves).train()
    resumed = real.trainer(tmp_path, [real.RangewatchCallback(url=ingest.url, run="r")], **saves)
    resumed.train(resume_from_checkpoint=True)
    assert sorted(ingest.series("wall_time_s")) == list(range(resumed.state.global_step))
    assert len({opening.info.incarnation for opening in ingest.openings}) == 2


def test_the_loss_scaler_is_found_and_its_skipped_steps_are_counted_as_the_trainer_does(
    ingest: IngestDouble, tmp_path: Path
) -> None:
    trained = real.trainer(tmp_path, [real.RangewatchCallback(url=ingest.url)], num_train_epochs=1)
    trained.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)  # fp16=True refuses a CPU
    trained.accelerator.native_amp = True
    trained.train()
    assert sorted(ingest.series("wall_time_s")) == list(range(trained.state.global_step)) == list(range(EPOCH_STEPS))
    scales, found_inf = ingest.series("loss_scale"), ingest.series("found_inf")
    assert scales[0] == 2.0**127 and found_inf[0] == 1.0 and found_inf[EPOCH_STEPS - 1] == 0.0
    assert scales[EPOCH_STEPS - 1] == 2.0 ** (127 - sum(found_inf.values()))
    assert all(opening.info.loss_scaled for opening in ingest.openings)


def test_a_model_that_the_trainer_compiles_is_read(ingest: IngestDouble, tmp_path: Path) -> None:
    """Twice: the second training of a trainer has compiled graphs from the first."""
    trained = real.trainer(
        tmp_path, [real.RangewatchCallback(url=ingest.url, run="compiled")], max_steps=2,
        torch_compile=True, torch_compile_backend="aot_eager",
    )  # fmt: skip
    for incarnation in (1, 2):
        trained.train()
        assert type(trained.model_wrapped).__name__ == "OptimizedModule"
        assert len(ingest.events("finished")) == incarnation
        newest = ingest.openings[-1].info.incarnation
        ingest.batches = [batch for batch in ingest.batches if batch.incarnation == newest]
        for fqn, kind in (("first", "output"), ("first", "grad_output"), ("second.weight", "grad")):
            assert sorted(ingest.tensors()[fqn, kind, 0]) == [0, 1], (fqn, kind, incarnation)


def test_an_exception_that_is_caught_fails_the_run(ingest: IngestDouble, tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError), real.RangewatchCallback(url=ingest.url) as callback:
        failing = real.trainer(tmp_path, [callback])
        failing.model.fails_at = 5
        failing.train()
    assert [event.message for event in ingest.events("failed")] == ["ArithmeticError: the data is bad"]
    assert callback.handle is None


def test_training_again_after_an_exception_attaches_anew(ingest: IngestDouble, tmp_path: Path) -> None:
    trained = real.trainer(tmp_path, [real.RangewatchCallback(url=ingest.url)], max_steps=4)
    trained.model.fails_at = 5
    with pytest.raises(ArithmeticError):
        trained.train()
    trained.train()
    assert len(ingest.events("failed")) == len(ingest.events("finished")) == 1


def test_values_that_are_no_numbers_are_left_out(ingest: IngestDouble, tmp_path: Path) -> None:
    class Odd(real.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trained.log({"text": "x", "self": 1.0, "flag": True, "one": torch.ones(1), "many": torch.ones(2)})

    trained = real.trainer(tmp_path, [real.RangewatchCallback(url=ingest.url), Odd()], max_steps=1)
    trained.train()
    assert ingest.series("one") == {0: 1.0} and ingest.series("flag") == {0: 1.0}
    assert not ingest.series("many") and not ingest.series("text")


def test_two_callbacks_are_refused(ingest: IngestDouble, tmp_path: Path) -> None:
    first, second = real.RangewatchCallback(url=ingest.url), real.RangewatchCallback(url=ingest.url)
    with first, pytest.raises(ValueError, match="attached already"):
        real.trainer(tmp_path, [first, second]).train()


def test_disabled_by_the_environment(ingest: IngestDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANGEWATCH_ENABLED", "0")
    real.trainer(tmp_path, [real.RangewatchCallback(url=ingest.url)], max_steps=1).train()
    assert not ingest.requests
