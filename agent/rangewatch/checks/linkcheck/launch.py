"""Starts the processes of a check: store, supervisors, and, in this process, the coordinator or a supervisor.

Not torch's elastic launcher, which ends all ranks when one fails and imports torch anew for each: here a rank that is
killed is named while the others go on, and each of some hundred tests has fresh workers within milliseconds.

Where this process stands: what torchrun or Slurm says of ranks and of rank 0's address.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from rangewatch.checks.linkcheck import store as stores
from rangewatch.checks.linkcheck import supervisor
from rangewatch.checks.linkcheck.children import Child
from rangewatch.checks.linkcheck.coordinator import Emit, Plan, check
from rangewatch.checks.linkcheck.faults import Fault
from rangewatch.checks.linkcheck.store import Address, Store
from rangewatch.checks.linkcheck.supervisor import CoordinatorGone
from rangewatch.checks.linkcheck.tasks import Member
from rangewatch.client.server_api import write_line

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
    # Outside srun a batch script's variables make it process 0 of as many as the job may have: nobody else would come.
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
    match = re.match(r"[^,\[\]]+(?:\[[0-9]+[^\]]*\]|[^,\[\]])*", nodes)
    if match is None:
        raise PlaceError(f"Slurm's node list {nodes!r} has no first node; set MASTER_ADDR")
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", match[0])


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


LEAVE_S = 3.0
"""For the other ranks to hear that it is over, before the store goes."""
EXIT_S = 1.0
"""For their processes to be gone: a launcher that sees rank 0 fail ends those that are left, and names them too."""


MOST_DESCRIPTORS = 65_536
OTHER_DESCRIPTORS = 24
"""Of one process: standard streams, torch's, logs, a connection on its way out."""
GPUS_S = 60.0
"""For the driver to count its GPUs: without persistence mode each takes seconds to wake."""


class LaunchError(Exception):
    """Why the check cannot run, in one line."""


def gpu_count() -> int:
    """GPUs of this host. Asked in a child, since a process that has asked CUDA can fork no worker that uses it.

    Raises `LaunchError` when the driver does not answer: that is not a host without a GPU.
    """
    child = Child.fork(lambda send: send(str(torch.cuda.device_count()).encode()), is_quiet=True)
    try:
        lines = child.lines(GPUS_S)
        if lines:
            return int(lines[0])
        how = "died" if lines is None else f"has not answered for {GPUS_S:g} s"
        raise LaunchError(
            f"the process that asks the driver for this host's GPUs {how}; --nproc N asks later, per rank"
        )
    finally:
        child.close()


def allow_descriptors(ranks: int) -> None:
    """As many as the system lets this process have, for a store with two connections a rank: 1,024 are usual.

    Raises `LaunchError` where that is too few: the store would answer some ranks and not others.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    needed = 2 * ranks + OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise LaunchError(f"{ranks} ranks need {needed} open files, and the limit is {soft}: raise it with ulimit -n")


def alone(plan: Plan, faults: Sequence[Fault], emit: Emit) -> dict[str, Any]:
    """All ranks on this host, started here. Raises `LaunchError`."""
    with ExitStack() as children:
        keeper, address = stores.host_loopback()
        children.callback(keeper.close)
        for rank in range(plan.world_size):
            children.callback(_start(address, rank, rank, faults, plan.join_s).close)
        return _coordinate(address, keeper, plan, emit)


def lead(place: Place, plan: Plan, faults: Sequence[Fault], emit: Emit) -> dict[str, Any]:
    """Rank 0 under a launcher: its supervisor, the coordinator, and the store unless torchrun has one.

    Raises `LaunchError`.
    """
    with ExitStack() as children:
        keeper = None if place.is_hosted else _host(place.address)
        if keeper is not None:
            children.callback(keeper.close)
        children.callback(_start(place.address, 0, place.local_rank, faults, plan.join_s).close)
        result = _coordinate(place.address, keeper, plan, emit)
        time.sleep(EXIT_S if place.world_size > 1 else 0.0)
        return result


def follow(place: Place, faults: Sequence[Fault], join_s: float) -> int:
    """Any other rank under a launcher: does what rank 0 asks for; its exit status."""
    try:
        supervisor.serve(Store(place.address, join_s), _member(place.rank, place.local_rank), faults)
    except (RuntimeError, CoordinatorGone) as error:
        where = f"{place.address.host}:{place.address.port}"
        reason = str(error).splitlines()[0][:200]
        write_line(sys.stderr, f"rangewatch linkcheck: rank {place.rank}: rank 0 at {where} does not answer ({reason})")
        return 2
    return 0


def _start(address: Address, rank: int, local_rank: int, faults: Sequence[Fault], join_s: float) -> Child:
    return Child.fork(lambda _: _supervise(address, rank, local_rank, faults, join_s))


def _supervise(address: Address, rank: int, local_rank: int, faults: Sequence[Fault], join_s: float) -> None:
    """A store or a coordinator that is gone is reported once, by the command itself."""
    with contextlib.suppress(RuntimeError, CoordinatorGone):
        supervisor.serve(Store(address, join_s), _member(rank, local_rank), faults)


def _member(rank: int, local_rank: int) -> Member:
    return Member(rank, local_rank, socket.gethostname(), os.getpid())


def _host(address: Address) -> Child:
    try:
        return stores.host(address)
    except OSError as error:
        raise LaunchError(f"cannot listen on port {address.port} ({error.strerror}); set MASTER_PORT") from None


def _coordinate(address: Address, keeper: Child | None, plan: Plan, emit: Emit) -> dict[str, Any]:
    try:
        store = Store(address, plan.join_s)
        result = check(store, plan, emit)
        here = sum(rank["fault"] != "missing" for rank in result["ranks"])
        end_s = time.monotonic() + LEAVE_S
        while store.left() < here and time.monotonic() < end_s:
            time.sleep(0.02)
    except RuntimeError as error:
        raise LaunchError(_reason(address, keeper, error)) from None
    return result


def _reason(address: Address, keeper: Child | None, error: RuntimeError) -> str:
    lines = keeper.log().splitlines() if keeper is not None and keeper.has_ended() else []
    last = next(
        (line for line in reversed(lines) if "rror" in line and "frame #" not in line), str(error).splitlines()[0]
    )
    return f"no store at {address.host}:{address.port}: {last[:300]}"
