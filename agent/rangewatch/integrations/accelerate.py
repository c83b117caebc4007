"""Hugging Face Accelerate: `attach`, for what `accelerator.prepare` returned."""

from __future__ import annotations

from typing import Any

from torch import nn

from rangewatch.api import attachment
from rangewatch.api.attachment import Handle
from rangewatch.integrations.trainer_run import uncompiled


def attach(model: nn.Module, optimizer: Any, **options: Any) -> Handle:
    """`rangewatch.attach` for a model and an optimizer, or several, that `accelerator.prepare` has returned.

    Call it before the first forward: a model that Accelerate gave to `torch.compile` is compiled then. A step is one of
    the optimizer's own: with `accelerator.accumulate` the microbatches in between are part of it. The loss scaler is
    the accelerator's, found in the optimizer. `options` are those of `rangewatch.attach`, which says what it raises.
    """
    return attachment.attach(uncompiled(model), optimizer, **options)
