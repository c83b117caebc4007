"""Which device a worker has, and which backend that allows. Runs in a worker only: a process that forks others must
not have started CUDA."""

from __future__ import annotations

import torch
import torch.distributed as dist

from rangewatch.linkcheck.tasks import GLOO, NCCL, Device


def find(local_rank: int) -> tuple[torch.device, Device]:
    """This rank's device, current from now on. Raises what CUDA raises when a GPU is there and does not work."""
    if not torch.cuda.is_available():
        return torch.device("cpu"), Device("cpu", why="torch sees no CUDA device")
    count = torch.cuda.device_count()
    index = local_rank % count  # Slurm and containers may show each rank its own GPU only, as number 0
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device, Device(f"cuda:{index} {torch.cuda.get_device_name(index)}", _identity(index), *_backend())


def _identity(index: int) -> str:
    """The UUID; "" before torch 2.5, which does not tell it: a number may be another GPU's in another container."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return "" if uuid is None else str(uuid)


def _backend() -> tuple[str, str]:
    return (NCCL, "") if dist.is_nccl_available() else (GLOO, "this torch was built without NCCL")


def synchronize(device: torch.device) -> None:
    """Wait for what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
