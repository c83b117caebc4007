"""Who this process is: rank, world size, local rank, host, run and incarnation, without running any collective."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import re
import socket
import sys
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import torch

from rangewatch import __version__, limits
from rangewatch.guard import logger
from rangewatch.records import RankInfo

_RUN_KEY = "rangewatch/run"


def rank_info(
    run: str | None, device: torch.device, *, loss_scaled: bool, ship_every: int = 1, takes_alerts: bool = False
) -> RankInfo:
    """Describe this process; a new incarnation each time. `run` None: the ranks agree on one, see `run_name`."""
    rank, world_size, local_rank = ranks()
    return RankInfo(
        run=run or run_name(world_size),
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        host=_host(),
        incarnation=uuid.uuid4().hex,
        started_ns=time.time_ns(),
        pid=os.getpid(),
        device=_device_name(device),
        versions={"rangewatch": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        loss_scaled=loss_scaled,
        ship_every=ship_every,
        takes_alerts=takes_alerts,
    )


def told_apart(info: RankInfo, model: str, taken: Collection[str]) -> RankInfo:
    """`info` with a run name that no other attached model of this process has: the server would take this one for it.

    All ranks come to the same name as long as they attach their models, of class `model`, in the same order.
    """
    if info.run not in taken:
        return info
    base = f"{info.run[: limits.NAME_CHARACTERS // 2]}/{model[: limits.NAME_CHARACTERS // 4]}"
    names = itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2)))
    run = next(name for name in names if name not in taken)
    logger.warning("rangewatch: run %r has another model of this process already; this one is run %r", info.run, run)
    return msgspec.structs.replace(info, run=run)


def ranks(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int]:
    """Rank, world size and local rank: from torch.distributed when it runs, else torchrun's variables, else 0, 1, 0."""
    rank, world_size = _whole(environment, "RANK", 0), _whole(environment, "WORLD_SIZE", 1)
    local_rank = _whole(environment, "LOCAL_RANK", 0)
    if _is_distributed():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return rank, max(world_size, rank + 1), local_rank


def run_name(world_size: int, environment: Mapping[str, str] = os.environ) -> str:
    """A name that all ranks of this job come to by themselves.

    The default store of torch.distributed keeps the first rank's proposal (one request, nobody waits for anybody). A
    proposal is the script's name and the job's id (torchrun's `--rdzv-id` or Slurm's), or the time where there is none.
    """
    job = _job_id(environment)
    proposal = f"{_script_stem()}-{job or time.strftime('%Y%m%d-%H%M%S')}"[: limits.NAME_CHARACTERS]
    agreed = _agree(proposal) if _is_distributed() else None
    if agreed is None and not job and world_size > 1:
        logger.warning(
            "rangewatch: each rank has named its own run; attach after torch.distributed.init_process_group, "
            "or set RANGEWATCH_RUN"
        )
    return agreed or proposal


def _agree(proposal: str) -> str | None:
    # A store without compare_set, or one whose server is gone, must not keep anybody from training.
    with contextlib.suppress(Exception):
        store = torch.distributed.distributed_c10d._get_default_store()
        return bytes(store.compare_set(_RUN_KEY, "", proposal)).decode()
    return None


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _job_id(environment: Mapping[str, str]) -> str:
    job = environment.get("TORCHELASTIC_RUN_ID", "")
    if job in {"", "none"}:
        job = environment.get("SLURM_JOB_ID", "")
    if re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}", job):
        job = job[:8]  # torchrun --standalone makes a UUID: its first part tells runs apart and can be read
    return "".join(character for character in job if character.isprintable())


def _script_stem() -> str:
    script = Path(sys.argv[0]).stem if sys.argv else ""
    if script == "__main__":  # python -m package
        script = Path(sys.argv[0]).parent.name
    stem = "".join(character for character in script if character.isprintable())
    return stem if stem.strip("-") else "run"


def _whole(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else default


def _host() -> str:
    with contextlib.suppress(OSError):  # a sandbox may forbid to ask
        return socket.gethostname()
    return "?"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        with contextlib.suppress(Exception):
            return str(torch.cuda.get_device_name(device))
    return device.type
