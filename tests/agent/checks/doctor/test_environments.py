"""Planted environments: each fault is found, with what to type; a clean machine has none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict

import pytest

from rangewatch.checks.doctor import checks
from rangewatch.checks.doctor.checks import EVENT_BYTES, environment_event
from rangewatch.checks.doctor.details import environment
from rangewatch.checks.doctor.findings import Finding
from rangewatch.wire.events import details_of
from tests.agent.checks.doctor.planted import Planted

Plant = Callable[[Planted], object]


def _set(**variables: str) -> Plant:
    return lambda planted: planted.environ.update(variables)


def _two_toolkits(planted: Planted) -> None:
    planted.toolkit("12.1")
    planted.environ["CUDA_HOME"] = "/usr/local/cuda-12.1"


def _mismatch(planted: Planted) -> None:
    planted.torch(cuda="11.8")


def _wrapper(planted: Planted) -> None:
    del planted.environ["CUDA_HOME"]
    planted.script("/usr/local/bin/nvcc", "Cuda compilation tools, release 12.4, V12.4.99")
    planted.environ["PATH"] = "/usr/local/bin:/usr/bin:/bin"


def _no_verbs(planted: Planted) -> None:
    (planted.root / "dev/infiniband/uverbs0").unlink()


def _architectures(names: str) -> Plant:
    return lambda planted: planted.torch(architectures=names)


def _old_driver(planted: Planted) -> None:
    planted.driver("470.82.01")
    planted.torch(text=NO_GPU)


def _hidden_setting(planted: Planted) -> None:
    planted.write("/etc/nccl.conf", "# from the admin\nNCCL_P2P_DISABLE=1\n")


PLANTED: dict[str, tuple[Plant, str, str]] = {
    # name: what is done to a clean machine, the finding's code, its severity
    "two toolkits": (_two_toolkits, "two_toolkits", "warning"),
    "toolkit of another major": (_mismatch, "toolkit_mismatch", "error"),
    "nvcc out of its toolkit": (_wrapper, "toolkit_incomplete", "warning"),
    "missing path": (_set(TMPDIR="/scratch/job/tmp"), "missing_folder", "warning"),
    "missing toolkit": (_set(CUDA_HOME="/usr/local/cuda-12.9"), "missing_folder", "error"),
    "deprecated": (_set(NCCL_ASYNC_ERROR_HANDLING="1"), "deprecated_variable", "warning"),
    "timeout in a variable that nobody reads": (_set(NCCL_TIMEOUT="3600"), "unread_timeout", "warning"),
    "timeout in another unit": (_set(NCCL_IB_TIMEOUT="1800"), "misread_timeout", "warning"),
    "minutes": (_set(DEEPSPEED_TIMEOUT="7200"), "misread_timeout", "warning"),
    "InfiniBand off": (_set(NCCL_IB_DISABLE="1"), "infiniband_off", "warning"),
    "InfiniBand up but sockets": (_set(NCCL_NET="Socket"), "sockets_chosen", "warning"),
    "InfiniBand up but another card named": (_set(NCCL_IB_HCA="=mlx5_7:1"), "sockets_chosen", "warning"),
    "InfiniBand up but not in the container": (_no_verbs, "infiniband_unusable", "warning"),
    "compiler too new": (lambda planted: planted.compilers("g++ (GCC) 14.2.1 20250110"), "compiler_too_new", "error"),
    "architecture not in the list": (_architectures("sm_70 sm_80"), "architecture_missing", "error"),
    "architecture by PTX": (_architectures("sm_80 compute_80"), "architecture_by_ptx", "warning"),
    "driver too old": (_old_driver, "driver_too_old", "error"),
    "torch without CUDA": (lambda planted: planted.torch(cuda=None, architectures=""), "torch_without_cuda", "error"),
    "torch broken": (lambda planted: planted.torch(text="raise OSError('libcudart')"), "torch_broken", "error"),
    "P2P off, in NCCL's file": (_hidden_setting, "peer_to_peer_off", "warning"),
    "P2P off by level": (_set(NCCL_P2P_LEVEL="LOC"), "peer_to_peer_off", "warning"),
    "a word for a number": (_set(NCCL_IB_DISABLE="true"), "unreadable_number", "warning"),
    "blocking wait": (_set(TORCH_NCCL_BLOCKING_WAIT="1"), "blocking_wait", "warning"),
    "errors not handled": (_set(TORCH_NCCL_ASYNC_ERROR_HANDLING="0"), "errors_not_handled", "warning"),
    "launch blocking": (_set(CUDA_LAUNCH_BLOCKING="1"), "debug_setting", "warning"),
    "NCCL's trace": (_set(NCCL_DEBUG="TRACE"), "debug_setting", "warning"),
    "a device twice": (_set(CUDA_VISIBLE_DEVICES="0,1,1"), "visible_devices_twice", "error"),
    "a device that is not there": (_set(CUDA_VISIBLE_DEVICES="0,9"), "visible_devices_absent", "error"),
    "a UUID that no card has": (_set(CUDA_VISIBLE_DEVICES="GPU-1,GPU-9"), "visible_devices_absent", "error"),
    "too few devices": (_set(CUDA_VISIBLE_DEVICES="0,1", LOCAL_WORLD_SIZE="4"), "visible_devices_too_few", "error"),
    "threads": (_set(OMP_NUM_THREADS="4096"), "thread_count", "warning"),
    "interface that is not there": (_set(NCCL_SOCKET_IFNAME="ens5"), "interface_missing", "error"),
    "loopback": (_set(GLOO_SOCKET_IFNAME="lo", WORLD_SIZE="8", LOCAL_WORLD_SIZE="4"), "loopback_chosen", "error"),
}  # fmt: skip

NO_GPU = """
import types
__version__ = "2.6.0"
version = types.SimpleNamespace(cuda="12.4", git_version="abc", hip=None)
_C = types.SimpleNamespace()
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: None))
cuda = types.SimpleNamespace(is_available=lambda: False)
"""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(planted: Planted, name: str) -> None:
    plant, code, severity = PLANTED[name]
    plant(planted)
    found = _findings(planted)
    assert (code, severity) in [(finding.code, finding.severity) for finding in found]
    assert all(finding.what and finding.why and finding.do for finding in found)


def test_a_clean_machine_has_no_finding(planted: Planted) -> None:
    assert _findings(planted) == []
    assert environment_event(planted.without_cards().machine).findings == ()


@pytest.mark.parametrize(
    "variables",
    [
        {"NCCL_SOCKET_IFNAME": "eth"},
        {"NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"NCCL_SOCKET_IFNAME": "=eth0"},
        {"NCCL_IB_HCA": "mlx5"},
        {"NCCL_IB_HCA": "^mlx5_3"},
        {"NCCL_IB_HCA": "=mlx5_0:1"},
        {"NCCL_IB_DISABLE": "0", "NCCL_P2P_DISABLE": "0", "CUDA_LAUNCH_BLOCKING": "0"},
        {"CUDA_VISIBLE_DEVICES": "2", "LOCAL_WORLD_SIZE": "4"},
        {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2,GPU-3,GPU-0"},
        {"CUDA_VISIBLE_DEVICES": "0,1,"},
        {"CUDA_VISIBLE_DEVICES": "MIG-1,GPU-1"},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
        {"NCCL_IB_TIMEOUT": "22"},
        {"HF_HOME": "/tmp/not/made/yet"},
        {"PATH": "/usr/local/nvidia/bin:/home/user/.local/bin:/usr/local/cuda/bin:/usr/bin:/bin"},
    ],
)
def test_a_setting_that_is_fine_is_no_finding(planted: Planted, variables: dict[str, str]) -> None:
    planted.environ |= variables
    assert _findings(planted) == []


def test_cards_whose_uuid_is_not_known_yet_are_not_missed(planted: Planted) -> None:
    for number in range(4):
        path = planted.root / f"proc/driver/nvidia/gpus/0000:0{number}:00.0/information"
        path.write_text(path.read_text().replace(f"GPU-{number}", "GPU-????????-????"))
    planted.environ["CUDA_VISIBLE_DEVICES"] = "GPU-8a"
    assert _findings(planted) == []


def test_an_interface_past_those_that_are_told_of_is_not_missed(planted: Planted) -> None:
    for number in range(100):
        planted.write(f"/sys/class/net/br{number:03}/operstate", "up\n")
    planted.write("/sys/class/net/ens5/operstate", "up\n")
    planted.environ["NCCL_SOCKET_IFNAME"] = "ens5"
    assert _findings(planted) == []


def test_what_a_sites_start_up_files_print_is_not_torchs(planted: Planted) -> None:
    lines = ['{"level": "info"}', "{'a': 1}", "{", "[1]"]
    planted.write("/packages/sitecustomize.py", "".join(f"print({line!r})\n" for line in lines))
    details = environment(planted.machine, deep=True)
    assert details["torch"]["version"] == "2.6.0+cu124"


def test_a_pipe_in_place_of_a_file_holds_nothing_up(planted: Planted) -> None:
    os.mkfifo(planted.root / "root/.nccl.conf")
    assert environment(planted.machine)["nccl_files"] == {}


def test_a_containers_quota_counts(planted: Planted) -> None:
    planted.write("/proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n")
    planted.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n")
    planted.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert environment(planted.machine)["host"]["cpus"] == 1


def test_another_toolkit_that_lies_unused_is_no_finding(planted: Planted) -> None:
    planted.toolkit("11.8")
    details = environment(planted.machine, deep=True)
    assert {toolkit["version"] for toolkit in details["toolkits"]} == {"11.8", "12.4"}
    assert checks.findings(details) == []


def test_what_to_type_names_the_toolkit_that_fits(planted: Planted) -> None:
    _mismatch(planted)
    planted.toolkit("11.8")
    found = _by_code(planted)["toolkit_mismatch"]
    assert found.do == "export CUDA_HOME=/usr/local/cuda-11.8 PATH=/usr/local/cuda-11.8/bin:$PATH"


def test_the_compiler_is_held_against_the_toolkits_own_header(planted: Planted) -> None:
    planted.compilers("g++ (GCC) 14.2.1 20250110")
    planted.toolkit("12.4", gcc=14)
    assert "compiler_too_new" not in _by_code(planted)


def test_a_variable_of_the_process_wins_over_nccls_file(planted: Planted) -> None:
    _hidden_setting(planted)
    assert _by_code(planted)["peer_to_peer_off"].where == "/etc/nccl.conf: NCCL_P2P_DISABLE"
    planted.environ["NCCL_P2P_DISABLE"] = "0"
    assert "peer_to_peer_off" not in _by_code(planted)


def test_nobody_is_told_to_give_a_bad_setting_a_new_name(planted: Planted) -> None:
    planted.environ["NCCL_BLOCKING_WAIT"] = "1"
    assert set(_by_code(planted)) == {"blocking_wait"}


def test_quick_facts_find_what_needs_no_program(planted: Planted) -> None:
    planted.environ |= {"NCCL_TIMEOUT": "3600", "NCCL_IB_DISABLE": "1"}
    event = environment_event(planted.without_cards().machine)
    assert {finding.code for finding in event.findings} == {"unread_timeout", "infiniband_off"}
    assert event.facts["nvcc"]["version"] == "12.4"


def test_no_secret_is_told(planted: Planted) -> None:
    planted.environ |= {
        "NCCL_SECRET": "s3cret", "CUDA_API_KEY": "s3cret", "TORCH_AUTH_TOKEN": "s3cret", "HF_TOKEN": "s3cret",
        "NCCL_NET_PLUGIN": "http://me:s3cret@proxy/", "TORCH_LOGS": "hf_s3cretAAAAAAAAAAAAAAAAAAA", "SSH_KEY": "s3cret",
    }  # fmt: skip
    planted.write("/etc/nccl.conf", "NCCL_PASSWORD=s3cret\n")
    assert "s3cret" not in json.dumps(details_of(environment_event(planted.machine)))
    assert "NCCL_NET_PLUGIN" in environment_event(planted.machine).facts["variables"]


def test_an_event_is_bounded(planted: Planted) -> None:
    planted.environ |= {f"NCCL_{number:04}": "\x01é" * 10_000 for number in range(1_000)}
    planted.environ["LD_LIBRARY_PATH"] = ":".join(f"/cuda/{number}/{'x' * 200}" for number in range(3_000))
    event = environment_event(planted.machine)
    assert len(json.dumps(details_of(event))) <= EVENT_BYTES
    assert event.facts["left_out"]


def test_a_program_that_hangs_costs_its_timeout_only(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rangewatch.checks.doctor.toolkits.COMPILER_TIMEOUT_S", 0.2)
    planted.write("/usr/bin/c++", "#!/bin/sh\n/bin/sleep 600\n")
    details = environment(planted.machine, deep=True)
    assert details["compilers"]["cxx"]["major"] is None
    assert details["compilers"]["nvcc_host"]["major"] == 12


@pytest.mark.parametrize("text", ["{", "[1]", '{"cuda_nvcc": 3}', "\x00\xff", "{" * 70_000])
def test_files_that_make_no_sense_are_not_known(planted: Planted, text: str) -> None:
    planted.without_cards()
    for path in ("version.json", "version.txt", "include/cuda.h", "include/crt/host_config.h"):
        planted.write(f"/usr/local/cuda-12.4/{path}", text)
    for path in ("/proc/driver/nvidia/version", "/proc/self/limits", "/etc/nccl.conf", "/sys/class/net/eth0/operstate"):
        planted.write(path, text)
    details = environment(planted.machine, deep=False)
    assert details["build_home"]["version"] is None
    assert checks.findings(details) == []


def test_a_machine_with_nothing_on_it(planted: Planted, tmp_path: object) -> None:
    bare = type(planted.machine)(environ={}, root=planted.root / "tmp")
    event = environment_event(bare)
    assert event.findings == ()
    assert event.facts["toolkits"] == []


def _findings(planted: Planted) -> list[Finding]:
    details = environment(planted.machine, deep=True)
    json.dumps(details)
    return checks.findings(details)


def _by_code(planted: Planted) -> dict[str, Finding]:
    found = {finding.code: finding for finding in _findings(planted)}
    json.dumps([asdict(finding) for finding in found.values()])
    return found
