"""`python torchtitan_on_cpu.py SCRIPT ...` runs a script of torchtitan's without a GPU, and is the module of its
configuration.

torchtitan asks torch's module of the device for more than `torch.cpu` has, its FlexAttention has no backward on a CPU,
and a release may call what only a newer torch has.
"""

from __future__ import annotations

import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torchtitan.tools import utils


def debug_model() -> Any:
    """Llama of 6 million parameters with torch's own attention, and batches that a CPU takes half a second for."""
    from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    for _, _, parent, name in list(config.model_spec.model.traverse(FlexAttention.Config)):
        setattr(parent, name, ScaledDotProductAttention.Config())
    config.training.disable_cuda_graphs = True
    config.training.seq_len, config.training.local_batch_size = 32, 2
    return config


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _cpu() -> ModuleType:
    found = ModuleType("cpu")
    answers = {
        "current_device": 0, "device_count": 1, "get_device_name": "CPU", "memory_stats": {},
        "get_device_properties": SimpleNamespace(total_memory=1 << 34, name="CPU"),
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(found, name, lambda *args, answer=answer: answer)
    for name in ("empty_cache", "reset_peak_memory_stats", "set_device", "synchronize"):
        setattr(found, name, _nothing)
    found.__getattr__ = lambda name: getattr(torch.cpu, name)  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    utils.device_type, utils.device_module = "cpu", _cpu()
    utils.get_local_device = lambda: torch.device("cpu")
    if not hasattr(torch.distributed, "set_timeout"):
        torch.distributed.set_timeout = _nothing
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
