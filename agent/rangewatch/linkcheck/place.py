"""Where this process stands: what torchrun or Slurm says of ranks and of rank 0's address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from rangewatch.linkcheck.store import Address

PREFIX = "rangewatch-linkcheck"
DEFAULT_PORT = 29_500
"""torch's own default."""


class PlaceError(Exception):
    """Why this process cannot tell which rank it is."""


class Place(NamedTuple):
    """`is_hosted`: torchrun's agent keeps the store already, so rank 0 need not."""

    rank: int
    world_size: int
    local_rank: int
    address: Address
    is_hosted: bool


def find(environment: Mapping[str, str]) -> Place | None:
    """What the launcher says; None without one. Raises `PlaceError` for half a launcher, or one that makes no sense."""
    if "RANK" in environment or "WORLD_SIZE" in environment:
        return _checked(_torchrun(environment))
    # A batch script outside srun is told that it is process 0, of as many as the job may have: nobody else would come.
    # A step of one task is a shell (`srun --pty bash`), or is to test the host's GPUs: one rank would test no link.
    if "SLURM_PROCID" in environment and environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        return _checked(_slurm(environment))
    return None


def _torchrun(environment: Mapping[str, str]) -> Place:
    restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"{PREFIX}/{environment.get('TORCHELASTIC_RUN_ID', '')}/{restart}"
    address = Address(_text(environment, "MASTER_ADDR"), _port(environment, DEFAULT_PORT), prefix)
    rank = _whole(environment, "RANK")
    local_rank = _whole(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else rank
    is_hosted = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Place(rank, _whole(environment, "WORLD_SIZE"), local_rank, address, is_hosted)


def _slurm(environment: Mapping[str, str]) -> Place:
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""
    host = environment.get("MASTER_ADDR") or first_node(nodes or _text(environment, "SLURM_NODELIST"))
    job = _whole(environment, "SLURM_JOB_ID") if "SLURM_JOB_ID" in environment else 0
    prefix = f"{PREFIX}/{job}/{environment.get('SLURM_STEP_ID', '')}"
    # Jobs that share a node need ports of their own, which all of a job's ranks come to by themselves.
    address = Address(host, _port(environment, 20_000 + job % 10_000), prefix)
    local_rank = _whole(environment, "SLURM_LOCALID") if "SLURM_LOCALID" in environment else 0
    ranks = _whole(environment, "SLURM_PROCID"), _whole(environment, "SLURM_STEP_NUM_TASKS")
    return Place(*ranks, local_rank, address, is_hosted=False)


def first_node(nodes: str) -> str:
    """The first of Slurm's list: `rack[1-2]n[03-10,12],login1` is rack1n03. Raises `PlaceError`."""
    found = re.match(r"[^,\[\]]+(?:\[[0-9]+[^\]]*\]|[^,\[\]])*", nodes)
    if found is None:
        raise PlaceError(f"Slurm's node list {nodes!r} has no first node; set MASTER_ADDR")
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", found[0])


def _checked(place: Place) -> Place:
    if not 0 <= place.rank < place.world_size:
        raise PlaceError(f"rank {place.rank} is not below the world size {place.world_size}")
    return place


def _port(environment: Mapping[str, str], default: int) -> int:
    port = _whole(environment, "MASTER_PORT") if "MASTER_PORT" in environment else default
    if not 0 < port < 65_536:
        raise PlaceError(f"MASTER_PORT={port} is no port")
    return port


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise PlaceError(f"{name} is not set, though the launcher's other variables are")
    return value


def _whole(environment: Mapping[str, str], name: str) -> int:
    value = _text(environment, name)
    if not value.isdecimal():
        raise PlaceError(f"{name}={value!r} is not a whole number")
    return int(value)
