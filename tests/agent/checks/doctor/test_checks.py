"""Rules on facts that no folder can plant: limits of the machine, libraries that a process has loaded."""

from __future__ import annotations

from typing import Any

import pytest

from rangewatch.checks.doctor import checks
from rangewatch.checks.doctor.details import environment
from rangewatch.checks.doctor.findings import Details
from tests.agent.checks.doctor.planted import Planted

GIB = 1 << 30


@pytest.fixture
def details(planted: Planted) -> Details:
    return environment(planted.without_cards().machine)


@pytest.mark.parametrize(
    ("host", "codes"),
    [
        ({"shm_bytes": 64 << 20, "shm_free_bytes": 60 << 20}, ["small_shared_memory"]),
        ({"shm_bytes": 8 * GIB, "shm_free_bytes": 1 << 20}, ["small_shared_memory"]),
        ({"shm_bytes": 8 * GIB, "shm_free_bytes": 8 * GIB}, []),
        ({"memlock_bytes": 65536, "is_root": False}, ["little_locked_memory"]),
        ({"memlock_bytes": 65536, "is_root": True}, []),
        ({"memlock_bytes": None, "is_root": False}, []),
        ({"nofile": 256}, ["few_open_files"]),
    ],
)
def test_limits_of_the_machine(details: Details, host: dict[str, Any], codes: list[str]) -> None:
    details["host"] |= host
    assert [finding.code for finding in checks.findings(details)] == codes


def test_a_library_that_is_loaded_from_two_files(details: Details) -> None:
    details["loaded_libraries"] = {"libnccl.so.2": ["/a/libnccl.so.2", "/b/libnccl.so.2"], "libcudart.so.12": ["/a/x"]}
    (found,) = checks.findings(details)
    assert (found.code, found.what) == (
        "library_twice",
        "This process has loaded libnccl.so.2 twice: /a/libnccl.so.2 and /b/libnccl.so.2",
    )


@pytest.mark.parametrize(
    ("built", "capability", "code"),
    [
        (["sm_80"], "8.6", None),  # code for an older one of the same major runs
        (["sm_86"], "8.0", "architecture_missing"),
        (["sm_90"], "9.0", None),
        (["sm_90a"], "9.0", None),
        (["sm_100a"], "10.3", "architecture_missing"),  # code with a letter is for that one only
        (["sm_75", "compute_75"], "12.0", "architecture_by_ptx"),
        (["sm_75", "compute_100"], "8.0", "architecture_missing"),
    ],
)
def test_which_architectures_run(details: Details, built: list[str], capability: str, code: str | None) -> None:
    details["torch"] |= {"arch_list": built, "devices": [{"name": "card", "capability": capability}]}
    assert [finding.code for finding in checks.findings(details)] == ([code] if code else [])


@pytest.mark.parametrize(("cuda", "severity"), [("12.1", "info"), ("12.4", None), ("11.8", "error"), ("13.0", "error")])
def test_a_minor_version_apart_is_good_to_know(details: Details, cuda: str, severity: str | None) -> None:
    details["torch"]["cuda"] = cuda
    assert [finding.severity for finding in checks.findings(details)] == ([severity] if severity else [])


def test_a_minor_version_apart_fails_deepspeed_from_cuda_13_on(details: Details) -> None:
    details["torch"]["cuda"] = "13.2"
    details["build_home"]["version"] = "13.0"
    details["deepspeed"]["version"] = None
    assert [finding.code for finding in checks.findings(details)] == ["toolkit_minor_mismatch"]
    details["deepspeed"]["version"] = "0.19.8"
    assert [finding.code for finding in checks.findings(details)] == ["toolkit_mismatch"]


def test_the_worst_comes_first(details: Details) -> None:
    details["variables"] |= {"NCCL_ALGO": "Ring", "NCCL_TIMEOUT": "1", "NCCL_SOCKET_IFNAME": "nowhere"}
    assert [finding.severity for finding in checks.findings(details)] == ["error", "warning", "info"]
