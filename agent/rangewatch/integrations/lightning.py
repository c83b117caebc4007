"""PyTorch Lightning: a `Callback`, for trainers of `lightning.pytorch` and of `pytorch_lightning`."""

from __future__ import annotations

from typing import Any

from torch import nn

from rangewatch.api.attachment import Handle
from rangewatch.integrations.trainer_run import TrainerRun, optimizers_of

try:
    from lightning.pytorch import Callback  # a trainer of pytorch_lightning takes it as well
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise ImportError("rangewatch.integrations.lightning needs Lightning: pip install lightning") from error


class RangewatchCallback(Callback):
    """`Trainer(callbacks=[RangewatchCallback(run="gpt", url=...)])`: the options are those of `rangewatch.attach`.

    Step n is the one before which `trainer.global_step` was n, also when training goes on from a checkpoint. With
    several optimizers, each of whose steps Lightning counts, a step is one of each. Where none of them has parameters
    of the module, as when `configure_optimizers` returns None, a step is a batch. `trainer.callback_metrics` are
    recorded, validation's too. The run ends with the training, and has failed where an exception ends it.
    """

    def __init__(self, **options: Any) -> None:
        """Raises `TypeError` or `ValueError` for options that cannot be right."""
        self._run = TrainerRun(options)
        self._global_step = 0
        self._is_step_a_batch = False
        self._metrics: dict[str, Any] = {}
        """Metrics as last seen, to know the new ones; the trainer holds the same tensors, of one element each."""

    @property
    def url(self) -> str:
        """Where the dashboard is."""
        return self._run.url

    @property
    def handle(self) -> Handle | None:
        """The handle of `rangewatch.attach`, while the training runs."""
        return self._run.handle

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Attach: the sanity check is over, and the checkpoint's step is restored."""
        self._global_step, self._metrics = trainer.global_step, dict(trainer.callback_metrics)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        # FSDP's flat parameters are seen only from the wrapper, which the strategy has.
        model = pl_module if trainer.strategy.model is None else trainer.strategy.model
        optimizers = optimizers_of(model, trainer.optimizers)  # Lightning puts in one without parameters for None
        self._is_step_a_batch = not optimizers
        self._run.begin(model, optimizers, scaler=scaler, step=self._first_step(trainer, scaler))

    def _first_step(self, trainer: Any, scaler: Any) -> int:
        if self._is_step_a_batch:
            return int(trainer.fit_loop.total_batch_idx) + 1  # it is that of the last batch
        # Lightning updates its scaler, which ends the agent's step, for each optimizer. It counts every optimizer.
        return int(trainer.global_step if scaler is not None else trainer.global_step // len(trainer.optimizers))

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        """A microbatch begins."""
        self._run.step_begins()

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        """If the microbatch was its step's last, record what the step logged."""
        if self._is_step_a_batch or trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self._run.step_ended()
            self._log(trainer)

    def on_train_epoch_start(self, trainer: Any, *args: Any) -> None:
        """Record what the last epoch logged at its end."""
        self._log(trainer)

    def on_validation_end(self, trainer: Any, *args: Any) -> None:
        """Record what the validation logged."""
        self._log(trainer)

    def on_train_end(self, trainer: Any, *args: Any) -> None:
        """Record what the last epoch logged, and detach."""
        self._log(trainer)
        self._run.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Detach; the run has failed."""
        self._run.end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Detach, should the training have ended in a way of its own."""
        self._run.end()

    def _log(self, trainer: Any) -> None:
        if self._run.handle is None:
            return
        metrics = dict(trainer.callback_metrics)
        self._run.log({name: value for name, value in metrics.items() if value is not self._metrics.get(name)})
        self._metrics = metrics
