"""Faster ways between the cards of one machine that are switched off."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.doctor.checks.settings import setting
from rangewatch.doctor.findings import Facts, Finding


def peer_to_peer_off(facts: Facts) -> Iterator[Finding]:
    """NCCL may not let cards write to each other's memory."""
    disable, level = setting(facts, "NCCL_P2P_DISABLE"), setting(facts, "NCCL_P2P_LEVEL")
    found = disable if disable and disable.number else None
    if found is None and level and level.value.strip().upper() in ("LOC", "0"):
        found = level
    if found:
        yield Finding(
            "peer_to_peer_off",
            "warning",
            f"{found.name}={found.value} switches off direct copies between cards, over NVLink and over PCIe",
            "Everything between cards of one machine goes through host memory, several times slower. It is a "
            "workaround for PCIe access control or cards that cannot do it, often left over.",
            f"{found.unset}  # then rangewatch linkcheck --nproc <cards>; disable PCIe ACS if that hangs",
            found.where,
        )


def shared_memory_off(facts: Facts) -> Iterator[Finding]:
    """NCCL may not use shared memory."""
    if (found := setting(facts, "NCCL_SHM_DISABLE")) and found.number:
        yield Finding(
            "shared_memory_off",
            "warning",
            f"NCCL_SHM_DISABLE={found.value} switches off shared memory between ranks of one machine",
            "Where cards have no direct way to each other, NCCL then uses the network inside the machine.",
            f"{found.unset}  # and give the container room: docker run --shm-size=8g (or --ipc=host)",
            found.where,
        )
