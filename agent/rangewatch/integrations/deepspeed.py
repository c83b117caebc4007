"""DeepSpeed: `attach`, for the engine that `deepspeed.initialize` returned. Read: deepspeed 0.19.8."""

from __future__ import annotations

from typing import Any

from rangewatch.api import attachment
from rangewatch.api.attachment import Handle

_NEEDED = ("module", "optimizer", "global_steps")


def attach(engine: Any, **options: Any) -> Handle:
    """`rangewatch.attach` for an engine, after `load_checkpoint` if there is one to load.

    A step is one of `engine.global_steps`, skipped ones too, and the first has the number that the engine is at. The
    loss scale is the engine's own. `options` are those of `rangewatch.attach`, which says what it raises; besides,
    `TypeError` for what is no engine.
    """
    missing = [name for name in _NEEDED if not hasattr(engine, name)]
    if missing:
        raise TypeError(f"{type(engine).__name__} has no {missing[0]!r}: pass what deepspeed.initialize returned first")
    options = {"start_step": engine.global_steps, **options}
    # With torch's autocast to fp16 and no ZeRO the engine itself holds the scaler.
    scaler = getattr(engine, "torch_autocast_z0_gradscaler", None)
    return attachment.attach(engine.module, engine.optimizer, scaler=scaler, **options)
