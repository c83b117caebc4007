"""How a scaler is set to change its scale, as the agent read it: docs/wire.md, event `scaler`.

What to try when the loss scale is wrong: code that works when it is pasted. `device` is torch's, such as `cuda`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch.wire.events import Scaler
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss_scale.causes import scale
from rangewatch_server.rules.phrases import in_bfloat16, in_float32, module_code
from rangewatch_server.rules.rule import Remedy


def scaler_settings(evidence: Evidence, scaler: str) -> Scaler:
    """The newest that the rank reported whose scale is examined, in its last process."""
    history = evidence.loss_scales
    begin = max(history.begins, default=0)
    own = [] if history.rank is None else evidence.details(Scaler, rank=history.rank)
    settings = (known for event, known in reversed(own) if event.step >= begin)
    return next((known for known in settings if known.series == scaler), Scaler(scaler))


def pace(reported: Scaler) -> Iterator[str]:
    """How it grows, where that is known."""
    if reported.interval is not None and reported.growth_factor is not None:
        factor, interval = reported.growth_factor, reported.interval
        yield f"It is multiplied by {factor:g} after {interval} clean steps, its growth_interval."


def way_back(reported: Scaler, high: float, low: float) -> Iterator[str]:
    """What it takes until a scale that fell from `high` to `low` is what it was."""
    factor, back = reported.growth_factor, reported.backoff_factor
    if back is not None and back >= 1:
        yield f"Its backoff_factor is {back:g}: a skipped step does not lower it."
    elif factor is not None and factor > 1 and reported.interval is not None and 0 < low < high:
        times = int(np.ceil(np.log2(high / low) / np.log2(factor)))
        steps = f"{times * reported.interval} clean steps, {times} times its growth_interval of {reported.interval}"
        yield f"To grow back to {scale(high)} it takes {steps}."


def why_standing(reported: Scaler, steps: int) -> str:
    """Why it has not grown in so many clean steps, as far as its settings show."""
    if reported.growth_factor is not None and reported.growth_factor <= 1:
        return f"Its growth_factor is {reported.growth_factor:g}: it never grows."
    if reported.interval is None:
        return "Either growth_interval is large, or update() is given a value, or the scale is fixed."
    if reported.interval > steps:
        return "So few clean steps are not enough for it to grow."
    return "So update() is given a value, or something else sets the scale back."


_CHECK = """\
for name, parameter in {module}.named_parameters():
    print(name, parameter.isfinite().all().item(), parameter.abs().max().item())"""

_CLIP = """\
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
scaler.step(optimizer)
scaler.update()"""

_SCALER = """\
scaler = torch.amp.GradScaler({device!r}, init_scale={init_scale:g}, growth_interval={growth_interval})
# each step:
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()  # without a value"""


def check_weights(fqn: str, because: str) -> Remedy:
    """Whether the weights of a module are finite."""
    text = "See whether its weights are finite; if not, go back to a checkpoint from before that step."
    return Remedy(text, _CHECK.format(module=module_code(fqn)), because)


def float32(fqn: str, because: str) -> Remedy:
    """Autocast off for one module, which then computes in float32."""
    return Remedy(f"Compute {fqn or 'the model'} in float32 (before torch.compile).", in_float32(fqn), because)


def bf16(device: str, because: str) -> Remedy:
    """Needs no scaler."""
    return Remedy("Train in bfloat16, without a GradScaler.", in_bfloat16(device), because)


def clip(because: str) -> Remedy:
    """Helps where the weights have grown, not against a gradient that is too large already."""
    return Remedy("Clip the gradients, after they are unscaled.", _CLIP, because)


def scaler(text: str, device: str, init_scale: float, growth_interval: int, because: str) -> Remedy:
    """A GradScaler with these settings."""
    code = _SCALER.format(device=device, init_scale=init_scale, growth_interval=growth_interval)
    return Remedy(text, code, because)
