"""Words of the early warnings: tensors by name, and code to paste."""

from __future__ import annotations

from collections.abc import Sequence

from rangewatch.wire.records import TensorEntry

_KINDS = {
    "output": "the output of {}",
    "input": "the input of {}",
    "grad_output": "the gradient of the output of {}",
    "grad": "the gradient of {}",
    "weight": "the weight {}",
    "reduced_grad": "the reduced gradient of {}",
    "update": "the update of {}",
    "exp_avg": "the first moment (exp_avg) of {}",
    "exp_avg_sq": "the second moment (exp_avg_sq) of {}",
    "momentum_buffer": "the momentum of {}",
    "scaled_input": "the scaled input of {}",
    "scaled_weight": "the scaled weight of {}",
    "scaled_grad_output": "the scaled gradient of the output of {}",
}


def the(entry: TensorEntry) -> str:
    """Such as "the output of blocks.3.ff"; with its place where the module gives several tensors."""
    name = entry.fqn or "the whole model"
    return _KINDS[entry.kind].format(name if entry.index == 0 else f"{name} (number {entry.index})")


def capital(text: str) -> str:
    """As a sentence begins."""
    return text[:1].upper() + text[1:]


def place(step: int, rank: int | None) -> str:
    """How a summary begins."""
    return f"Step {step}" if rank is None else f"Step {step}, rank {rank}"


def loss_called(name: str) -> str:
    """The series that holds the loss; by its name where that says more."""
    return "the loss" if name == "loss" else f"the loss ({name})"


def few_of(names: Sequence[str], count: int | None = None, most: int = 4) -> str:
    """The first few names, and how many more of `count` there are, by default of the names."""
    more = (len(names) if count is None else count) - min(len(names), most)
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def listed(entries: Sequence[TensorEntry], most: int = 4) -> str:
    """The same of tensors."""
    return few_of([the(entry) for entry in entries], most=most)


CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")
"""Classes that hold others of the same class, and whose forward is torch's own."""


def module_path(entries: Sequence[TensorEntry], fqn: str) -> str:
    """The path of the module that a tensor of this name is of; "" is the model itself.

    A value that was watched with `detect_overflow` is no module: it is of the one in whose forward it stands. That is
    "blocks.0" of "blocks.0 scores", and the model of "scores" where the model's own forward watches it, or none that
    is known.
    """
    own = next((each for each in entries if each.fqn == fqn and each.kind == "output"), None)
    if own is None or any(each.fqn.startswith(f"{fqn}.") for each in entries):
        return fqn
    head, space, _ = fqn.partition(" ")
    if space:
        return head if any(each.fqn == head or each.fqn.startswith(f"{head}.") for each in entries) else ""
    root = next((each.module for each in entries if each.fqn == "" and each.kind == "output"), None)
    is_of_root = own.module == "Value" or (own.module == root and root not in CONTAINERS)
    return "" if is_of_root else fqn


def module_code(fqn: str) -> str:
    """The expression for a module, by its path from the model; "" is the model itself."""
    return f"model.get_submodule({fqn!r})" if fqn else "model"


def in_float32(fqn: str) -> str:
    """Code that makes one module compute in float32, its inputs too, under autocast or not."""
    return (
        "def in_float32(module):\n"
        "    forward, device_type = module.forward, next(model.parameters()).device.type\n"
        "    def wide(value):\n"
        "        return value.float() if torch.is_tensor(value) and value.is_floating_point() else value\n"
        "    def run(*args, **kwargs):\n"
        "        with torch.autocast(device_type, enabled=False):\n"
        "            return forward(*map(wide, args), **{name: wide(value) for name, value in kwargs.items()})\n"
        "    module.float().forward = run\n"
        "# model: the one inside DDP, before the optimizer is made; the output is float32 too\n"
        f"in_float32({module_code(fqn)})"
    )


def in_bfloat16(device: str) -> str:
    """Code that makes the model compute in bfloat16, without a loss scaler. `device`: torch's word, such as `cuda`."""
    return (
        "model.float()  # before the optimizer is made\n"
        f"model.forward = torch.autocast({device!r}, dtype=torch.bfloat16)(model.forward)\n"
        f"scaler = torch.amp.GradScaler({device!r}, enabled=False)"
    )


def loader_with(settings: str) -> str:
    """Code that makes a data loader anew with other settings, such as `num_workers=2`."""
    return (
        "def made_anew(loader):  # yours: train_loader = made_anew(train_loader)\n"
        "    same = {'batch_sampler': loader.batch_sampler, 'collate_fn': loader.collate_fn}\n"
        f"    return torch.utils.data.DataLoader(loader.dataset, **same, {settings})"
    )
