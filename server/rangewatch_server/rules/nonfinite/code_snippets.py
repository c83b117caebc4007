"""Code to paste against NaN and Inf: it runs in the script that has `model`, `optimizer`, `scaler` and `loss`.

What stands in the user's own forward, or takes what only he has, is a function of it.
"""

from __future__ import annotations

from rangewatch_server.rules.phrases import module_code

CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # before optimizer.step()"

CLIP_FINITE = (
    "# before optimizer.step(); it stops where the norm is NaN or Inf\n"
    "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0, error_if_nonfinite=True)"
)

FIND_BAD_GRADIENTS = (
    "for name, each in model.named_parameters():  # right after backward(), and again right before optimizer.step()\n"
    "    if each.grad is not None and not each.grad.isfinite().all():\n"
    "        print(name, (~each.grad.isfinite()).nonzero().tolist()[:8])"
)

WARM_UP = (
    "warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=1000)\n"
    "optimizer.register_step_post_hook(lambda *_: warm_up.step())"
)

EPS = "model.get_submodule({name}).eps = 1e-5"

OPTIMIZER_EPS = "for group in optimizer.param_groups:\n    group['eps'] = 1e-5"

ZERO_GRADIENTS = (
    "for each in model.parameters():  # before optimizer.step(): it leaves out what has no gradient\n"
    "    if each.grad is not None and not each.grad.any():\n"
    "        each.grad = None"
)

INITIAL = "with torch.no_grad():\n    model.get_parameter({name}).mul_(0.5)"

FIND_BACKWARD = "torch.autograd.set_detect_anomaly(True)  # before the forward; slow, so for these steps only"

REDUCE = (
    "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # with DDP instead: model.float()\n"
    "model = fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))"
)

SEND = (
    "def send(hidden, rank):  # and receive into torch.empty(..., dtype=torch.float32)\n"
    "    torch.distributed.send(hidden.float().contiguous(), dst=rank)"
)

BAD_BUFFERS = (
    "floats = [(name, each) for name, each in model.named_buffers() if each.is_floating_point()]\n"
    "bad = [name for name, each in floats if each.isnan().any() or (each.isfinite() & (each > 1e30)).any()]\n"
    'assert not bad, f"NaN, or not written to: {bad}"'
)

BAD_PARAMETERS = (
    "bad = [name for name, each in model.named_parameters() if not torch.isfinite(each).all()]\n"
    'assert not bad, f"not finite: {bad}"'
)

CHECKPOINT = (
    "def bad_tensors(value, name):\n"
    "    if torch.is_tensor(value):\n"
    "        return [] if torch.isfinite(value).all() else [name]\n"
    "    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()\n"
    "    return [bad for key, each in items for bad in bad_tensors(each, f'{name}[{key!r}]')]\n"
    "# after loading; of an older file: bad_tensors(torch.load(path, map_location='cpu'), path)\n"
    "print(bad_tensors(model.state_dict(), 'model'), bad_tensors(optimizer.state_dict(), 'optimizer'))"
)

LOSS = (
    "def cross_entropy(logits, targets):  # logits: before any softmax; targets: classes, -100 is none\n"
    "    total = torch.nn.functional.cross_entropy(logits.float(), targets, reduction='sum')\n"
    "    return total / (targets != -100).sum().clamp(min=1)  # a mean over no target is 0 / 0"
)


MASKED_POOL = (
    "def masked_max(values, mask):  # (n, items, d), (n, items); mask: True may be chosen; 0 where nothing may be\n"
    "    most = values.masked_fill(~mask.unsqueeze(-1), torch.finfo(values.dtype).min).max(1).values\n"
    "    return most.masked_fill(~mask.any(1, keepdim=True), 0.0)"
)


def unmasked(fqn: str) -> str:
    """Masks with the lowest number instead of -Inf, before a module that is given the scores."""
    return (
        "def unmask(module, args):\n"
        "    scores, *rest = args\n"
        "    lowest = torch.finfo(scores.dtype).min\n"
        "    return (scores.masked_fill(scores == -torch.inf, lowest), *rest)\n"
        f"{module_code(fqn)}.register_forward_pre_hook(unmask)"
    )


def masked_softmax(fqn: str) -> str:
    """The same where the softmax is in a forward."""
    return (
        f"def masked_softmax(scores, mask):  # for the forward of {fqn or 'the model'}; mask: True may be looked at\n"
        "    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)"
    )


def check_batch(step: int, largest: float | None = None) -> str:
    """Stops before a batch that is not finite, or holds larger values than `largest`."""
    is_large = "" if largest is None else f" | (each.abs() > {largest:g})"
    return (
        "def check(module, args, kwargs):\n"
        "    for name, each in [*enumerate(args), *kwargs.items()]:\n"
        "        if torch.is_tensor(each) and each.is_floating_point() and each.dim():\n"
        "            bad = (each.isnan() | each.isposinf()"
        f"{is_large}).reshape(len(each), -1).any(1)  # -Inf may be a mask\n"
        '            assert not bad.any(), f"input {name}, samples {bad.nonzero().flatten().tolist()}"\n'
        f"model.register_forward_pre_hook(check, with_kwargs=True)  # it stops at step {step}"
    )


def check_targets(step: int) -> str:
    """The same of the targets, which no module is given."""
    return (
        f"def check_targets(targets):  # call it with each batch's targets: it stops at step {step}\n"
        '    assert targets.isfinite().all(), "targets that are NaN or Inf"\n'
        '    assert (targets != -100).any(), "no target at all"'
    )


def away(fqn: str, cause: str) -> str:
    """Keeps the inputs of a module away from where its function is not finite."""
    at = "each.masked_fill(each == 0, tiny)" if cause == "zero" else "each.clamp(min=tiny)"
    return (
        "def away(each):\n"
        "    if not torch.is_tensor(each) or not each.is_floating_point():\n"
        "        return each\n"
        "    tiny = torch.finfo(each.dtype).eps\n"
        f"    return {at}\n"
        f"{module_code(fqn)}.register_forward_pre_hook(lambda module, args: tuple(map(away, args)))"
    )


def away_inside(fqn: str) -> str:
    """The same for a function that is called in a forward, or in the loss."""
    where = f"the forward of {fqn}" if fqn else "the loss"
    return (
        f"def away(x):  # in {where}: torch.sqrt(away(x)), torch.log(away(x)), y / away(x)\n"
        "    return x.masked_fill(x == 0, torch.finfo(x.dtype).eps)"
    )


def watch_inside(fqn: str) -> str:
    """Records what each operation inside a forward gives."""
    name = f"{fqn} " if fqn else ""
    return (
        "class Watch(torch.overrides.TorchFunctionMode):\n"
        "    count = 0\n"
        "    def __torch_function__(self, function, types, args=(), kwargs=None):\n"
        "        value = function(*args, **(kwargs or {}))\n"
        "        if torch.is_tensor(value) and value.is_floating_point():\n"
        "            self.count += 1\n"
        f'            rangewatch.detect_overflow(value, f"{name}{{self.count}} {{function.__name__}}")\n'
        "        return value\n"
        "def watched(forward):\n"
        "    def run(*args, **kwargs):\n"
        "        with Watch():\n"
        "            return forward(*args, **kwargs)\n"
        "    return run\n"
        f"module = {module_code(fqn)}\n"
        "module.forward = watched(module.forward)  # slow: for these steps only"
    )


def lower_rate(ratio: float) -> str:
    """Sets the learning rate back."""
    return (
        "for group in optimizer.param_groups:  # a scheduler sets it anew: change it there\n"
        f"    group['lr'] *= {ratio:.3g}"
    )
