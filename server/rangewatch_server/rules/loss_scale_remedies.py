"""What to try when the loss scale is wrong: code that works when it is pasted. `device` is torch's, such as `cuda`."""

from __future__ import annotations

from rangewatch_server.rules.phrases import in_bfloat16, in_float32, module_code
from rangewatch_server.rules.rule import Remedy

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
