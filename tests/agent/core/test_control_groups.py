"""Limits of control groups of both versions, as their files tell them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rangewatch.core import control_groups

UNLIMITED = 0x7FFFFFFFFFFFF000


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "proc", tmp_path / "sys"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _groups(roots: tuple[Path, Path], of_process: str, **files: str) -> None:
    _write(roots[0] / "self/cgroup", of_process)
    for name, text in files.items():
        _write(roots[1] / "fs/cgroup" / name.replace("__", "/").replace("_DOT_", "."), text)


def test_version_1_in_a_container(roots: tuple[Path, Path]) -> None:
    """The path is the host's; what is mounted is the container's own."""
    _groups(
        roots,
        "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
        memory__memory_DOT_limit_in_bytes="1000\n",
        memory__memory_DOT_usage_in_bytes="900\n",
        memory__memory_DOT_stat="cache 500\ntotal_inactive_file 300\n",
        cpu__cpu_DOT_cfs_quota_us="150000\n",
        cpu__cpu_DOT_cfs_period_us="100000\n",
    )
    assert control_groups.memory(*roots) == (600, 1000)
    assert control_groups.cpus(*roots) == 1.5


def test_version_1_without_limits(roots: tuple[Path, Path]) -> None:
    _groups(
        roots,
        "12:memory:/\n4:cpu,cpuacct:/\n",
        memory__memory_DOT_limit_in_bytes=f"{UNLIMITED}\n",
        memory__memory_DOT_usage_in_bytes="900\n",
        cpu__cpu_DOT_cfs_quota_us="-1\n",
        cpu__cpu_DOT_cfs_period_us="100000\n",
    )
    assert all(math.isnan(value) for value in (*control_groups.memory(*roots), control_groups.cpus(*roots)))


def test_the_tightest_of_a_job_and_its_step(roots: tuple[Path, Path]) -> None:
    _groups(
        roots,
        "8:memory:/slurm/job_1/step_0\n",
        memory__slurm__job_1__memory_DOT_limit_in_bytes="500\n",
        memory__slurm__job_1__memory_DOT_usage_in_bytes="400\n",
        memory__slurm__job_1__step_0__memory_DOT_limit_in_bytes=f"{UNLIMITED}\n",
        memory__slurm__memory_DOT_limit_in_bytes="700\n",
    )
    assert control_groups.memory(*roots) == (400, 500)


def test_version_2(roots: tuple[Path, Path]) -> None:
    _groups(
        roots,
        "0::/job/step\n",
        job__cpu_DOT_max="400000 100000\n",
        job__step__cpu_DOT_max="max 100000\n",
        job__memory_DOT_max="1000\n",
        job__memory_DOT_current="990\n",
        job__memory_DOT_stat="anon 90\nfile 900\ninactive_file 850\n",
    )
    assert control_groups.cpus(*roots) == 4
    assert control_groups.memory(*roots) == (140, 1000), "caches that the kernel can drop fill no container"


@pytest.mark.parametrize("text", ["", "nonsense\n", "0:\n", "0::\x00\n", "::::\n", "0::/../../x\n"])
def test_files_that_make_no_sense(roots: tuple[Path, Path], text: str) -> None:
    _groups(roots, text, cpu_DOT_max="a b\n", memory_DOT_max="-\n")
    assert all(math.isnan(value) for value in (*control_groups.memory(*roots), control_groups.cpus(*roots)))
