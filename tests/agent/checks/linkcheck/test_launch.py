"""Which rank this process is, by the variables of torchrun and Slurm."""

from __future__ import annotations

import pytest

from rangewatch.checks.linkcheck.launch import PlaceError, find, first_node
from rangewatch.checks.linkcheck.store import Address

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[007-010],login1",
}


def test_torchrun_is_recognised_and_its_own_store_is_used() -> None:
    place = find(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "job"})
    assert place is not None and place.is_hosted
    assert place[:4] == (5, 8, 1, Address("10.0.0.1", 29400, "rangewatch-linkcheck/job/0"))


def test_other_launchers_with_torchs_variables_have_no_store() -> None:
    place = find({name: value for name, value in TORCHRUN.items() if name != "LOCAL_RANK"})
    assert place is not None and not place.is_hosted and place.local_rank == 5


def test_slurm_gives_ranks_the_first_node_and_a_port_of_the_job() -> None:
    place = find(SLURM)
    assert place is not None and place[:3] == (3, 4, 1)
    assert place.address == Address("gpu007", 23456, "rangewatch-linkcheck/123456/0")


def test_a_batch_script_outside_srun_is_no_launcher() -> None:
    assert find({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}) is None
    assert find({}) is None


def test_a_step_of_one_task_is_no_launcher_but_a_shell() -> None:
    """`srun --pty bash`: the host's GPUs are to be checked, and not one rank by itself."""
    assert find(SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}) is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("node[003-010,012]", "node003"),
        ("node[7,9],other", "node7"),
        ("rack[1-2]n5", "rack1n5"),
        ("rack[1-2]n[3-4],login", "rack1n3"),
        ("a-b.example.org", "a-b.example.org"),
    ],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "0"}, "MASTER_ADDR"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "RANK is not set"),
        (TORCHRUN | {"RANK": "8"}, "not below"),
        (TORCHRUN | {"RANK": "-1"}, "not a whole number"),
        (TORCHRUN | {"MASTER_PORT": "70000"}, "no port"),
        (SLURM | {"SLURM_STEP_NODELIST": "[]"}, "no first node"),
    ],
)
def test_what_makes_no_sense_is_told(environment: dict[str, str], said: str) -> None:
    with pytest.raises(PlaceError, match=said):
        find(environment)
