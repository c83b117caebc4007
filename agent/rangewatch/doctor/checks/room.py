"""Limits of the machine or its container: shared memory, locked memory, open files."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.doctor.findings import Facts, Finding

MIB = 1 << 20
SHM = "/dev/shm"  # noqa: S108  # named, not written to
SHM_LEAST_BYTES = 512 * MIB  # Docker's default is 64 MiB; NCCL alone takes some 10 MB a pair of ranks
MEMLOCK_LEAST_BYTES = 1 << 30  # NCCL registers its buffers with the card: some hundred MB a rank
NOFILE_LEAST = 1024  # the usual default; tensors from worker processes are files


def small_shared_memory(facts: Facts) -> Iterator[Finding]:
    """Shared memory is small, or full."""
    size, free = facts["host"].get("shm_bytes"), facts["host"].get("shm_free_bytes")
    if size is None or free is None or min(size, free) >= SHM_LEAST_BYTES:
        return
    is_full = size >= SHM_LEAST_BYTES
    yield Finding(
        "small_shared_memory",
        "warning",
        f"{SHM} has {free // MIB} MiB free of {size // MIB} MiB",
        'DataLoader workers end with "bus error", and NCCL fails with "No space left on device" or becomes slow.',
        "ls -lhS /dev/shm  # remove what ended jobs have left"
        if is_full
        else "docker run --shm-size=8g ...  # or --ipc=host",
        SHM,
    )


def little_locked_memory(facts: Facts) -> Iterator[Finding]:
    """Too little memory may be locked for InfiniBand."""
    limit = facts["host"].get("memlock_bytes", None)
    has_port = any(port["state"] == "ACTIVE" for port in facts["infiniband"]["ports"])
    if has_port and limit is not None and limit < MEMLOCK_LEAST_BYTES and not facts["host"]["is_root"]:
        yield Finding(
            "little_locked_memory",
            "warning",
            f"This process may lock {limit // 1024} KiB of memory, and an InfiniBand port is up",
            'NCCL fails with "ibv_reg_mr failed: Cannot allocate memory" when it connects.',
            "ulimit -l unlimited  # in a container: docker run --ulimit memlock=-1",
            "ulimit -l",
        )


def few_open_files(facts: Facts) -> Iterator[Finding]:
    """Few files may be open."""
    limit = facts["host"].get("nofile")
    if limit is not None and limit < NOFILE_LEAST:
        yield Finding(
            "few_open_files",
            "info",
            f"This process may have {limit} files open",
            'Many DataLoader workers, or NCCL with many ranks by TCP, end with "too many open files".',
            "ulimit -n 65536",
            "ulimit -n",
        )
