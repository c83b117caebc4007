"""InfiniBand ports, whether NCCL could use them, and the network interfaces."""

from __future__ import annotations

import re
from typing import Any

from rangewatch.doctor.machine import Machine

MOST_PORTS = 64
MOST_INTERFACES = 64

_DEVICES = "/sys/class/infiniband"
_INTERFACES = "/sys/class/net"
_VERBS = "libibverbs.so.1"
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64",
    "/usr/lib", "/lib", "/usr/local/lib",
)  # fmt: skip


def infiniband(machine: Machine) -> dict[str, Any]:
    """`ports`: device, port, state, link_layer, rate. `has_uverbs`, `has_library`: what NCCL needs beside them."""
    return {
        "ports": [_port(machine, device, port) for device, port in _ports(machine)[:MOST_PORTS]],
        "has_uverbs": bool(machine.names("/dev/infiniband", "uverbs*")),
        "has_library": _has_library(machine),
    }


def interfaces(machine: Machine) -> dict[str, str]:
    """State of each network interface by name, as the kernel says it: up, down, unknown."""
    # A machine with hundreds of containers has as many veth interfaces, of which none is used in training.
    names = [name for name in machine.names(_INTERFACES) if not re.match(r"veth|cali|lxc|tap", name)]
    return {name: _line(machine, f"{_INTERFACES}/{name}/operstate") or "unknown" for name in names[:MOST_INTERFACES]}


def _ports(machine: Machine) -> list[tuple[str, str]]:
    devices = machine.names(_DEVICES)
    return [(device, port) for device in devices for port in machine.names(f"{_DEVICES}/{device}/ports")]


def _port(machine: Machine, device: str, port: str) -> dict[str, str]:
    folder = f"{_DEVICES}/{device}/ports/{port}"
    return {
        "device": device,
        "port": port,
        "state": _line(machine, f"{folder}/state").partition(": ")[2],  # "4: ACTIVE"
        "link_layer": _line(machine, f"{folder}/link_layer"),
        "rate": _line(machine, f"{folder}/rate"),
    }


def _line(machine: Machine, path: str) -> str:
    return machine.text(path).strip()[:100]


def _has_library(machine: Machine) -> bool:
    folders = [*machine.entries("LD_LIBRARY_PATH"), *_LIBRARY_FOLDERS]
    return any(machine.exists(f"{folder}/{_VERBS}") for folder in folders)
