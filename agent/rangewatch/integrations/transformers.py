"""Hugging Face Transformers: a `TrainerCallback`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from torch import nn

from rangewatch.api.attachment import Handle
from rangewatch.integrations.trainer_run import TrainerRun

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError("rangewatch.integrations.transformers needs Transformers: pip install transformers") from error


class RangewatchCallback(TrainerCallback):
    """`Trainer(..., callbacks=[RangewatchCallback(run="t5", url=...)])`: the options are those of `rangewatch.attach`.

    Step n is the one before which `state.global_step` was n, also when training goes on from a checkpoint. What the
    trainer logs is recorded. The run ends with the training, and has failed where an exception ends the process; where
    the program catches it, write `with callback: trainer.train()`.
    """

    def __init__(self, **options: Any) -> None:
        """Raises `TypeError` or `ValueError` for options that cannot be right."""
        self._run = TrainerRun(options)

    @property
    def url(self) -> str:
        """Where the dashboard is."""
        return self._run.url

    @property
    def handle(self) -> Handle | None:
        """The handle of `rangewatch.attach`, while the training runs."""
        return self._run.handle

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Attach. The model is the user's own, or what FSDP made of it; the optimizer brings the loss scaler along."""
        assert model is not None
        self._run.begin(model, [optimizer], step=state.global_step)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An optimizer step begins, with the first of its microbatches."""
        self._run.step_begins()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """It has ended."""
        self._run.step_ended()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the numbers in `logs`: loss, grad_norm, learning_rate, and what an evaluation found."""
        self._run.log(logs or {})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Detach."""
        self._run.end()

    def __enter__(self) -> RangewatchCallback:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._run.end(error)
