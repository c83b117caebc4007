"""InfiniBand ports, whether NCCL could use them, and the network interfaces.

InfiniBand (and RoCE) that is there and not used, and interfaces that are named and not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rangewatch.checks.doctor.findings import Details, Finding
from rangewatch.checks.doctor.machine import Machine
from rangewatch.checks.doctor.variables import ranks_here, setting

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


_SLOW = "Between machines NCCL then uses TCP: often a tenth of the bandwidth, and no log says so below NCCL_DEBUG=INFO."


def infiniband_off(details: Details) -> Iterator[Finding]:
    """NCCL_IB_DISABLE while ports are up; only good to know where there are none."""
    variable = setting(details, "NCCL_IB_DISABLE")
    if variable is None or not variable.number:
        return
    up = _up(details)
    yield Finding(
        "infiniband_off",
        "warning" if up else "info",
        f"NCCL_IB_DISABLE={variable.value} switches InfiniBand and RoCE off"
        + (f", and {_described(up)}" if up else "; this machine has no port that is up"),
        _SLOW,
        variable.unset,
        variable.where,
    )


def sockets_chosen(details: Details) -> Iterator[Finding]:
    """Sockets by NCCL_NET, or NCCL_IB_HCA leaves no port that is up."""
    up = _up(details)
    net, cards = setting(details, "NCCL_NET"), setting(details, "NCCL_IB_HCA")
    if up and net and net.value.strip().lower() == "socket":
        yield Finding(
            "sockets_chosen",
            "warning",
            f"NCCL_NET={net.value} chooses sockets, and {_described(up)}",
            _SLOW,
            net.unset,
            net.where,
        )
    if up and cards and not [port for port in up if _allows(cards.value, port["device"], port["port"])]:
        names = ", ".join(dict.fromkeys(port["device"] for port in up))
        yield Finding(
            "sockets_chosen",
            "warning",
            f"NCCL_IB_HCA={cards.value} matches none of the ports that are up ({names})",
            _SLOW,
            f"{cards.unset}  # or NCCL_IB_HCA={up[0]['device']}",
            cards.where,
        )


def infiniband_unusable(details: Details) -> Iterator[Finding]:
    """Ports are up and what NCCL needs to use them is missing, in a container mostly."""
    up, ib = _up(details), details["infiniband"]
    lacks = [] if ib["has_uverbs"] else ["/dev/infiniband/uverbs*"]
    lacks += [] if ib["has_library"] else ["libibverbs.so.1"]
    if up and lacks and not setting(details, "NCCL_IB_DISABLE"):
        yield Finding(
            "infiniband_unusable",
            "warning",
            f"{_described(up)[0].upper()}{_described(up)[1:]}, and NCCL cannot use it: {' and '.join(lacks)} missing",
            _SLOW,
            "docker run --device=/dev/infiniband --cap-add=IPC_LOCK ...; apt install libibverbs1 ibverbs-providers",
            lacks[0],
        )


def interface_missing(details: Details) -> Iterator[Finding]:
    """A variable names network interfaces, and none of them is there. Not where there may be more than are listed."""
    there = details["interfaces"]
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if 0 < len(there) < MOST_INTERFACES else ():
        variable = setting(details, name)
        if variable and not [
            each for each in there if _matches(variable.value, each, is_exact=name.startswith("GLOO"))
        ]:
            yield Finding(
                "interface_missing",
                "error",
                f"{name}={variable.value} matches no network interface; there are {', '.join(list(there)[:12])}",
                "Ranks fail when they connect, or hang until the timeout.",
                f"{variable.unset}  # or export {name}=<one of those>",
                variable.where,
            )


def loopback_chosen(details: Details) -> Iterator[Finding]:
    """The loopback interface, while ranks run on other machines too."""
    world = details["variables"].get("WORLD_SIZE", "")
    if not (world.isdecimal() and int(world) > ranks_here(details) and "LOCAL_WORLD_SIZE" in details["variables"]):
        return
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if (variable := setting(details, name)) and variable.value.lstrip("=") == "lo":
            yield Finding(
                "loopback_chosen",
                "error",
                f"{name}={variable.value} is the loopback; {int(world) - ranks_here(details)} ranks run on other "
                "machines",
                "No other machine can reach it: ranks hang when they connect, until the timeout.",
                f"{variable.unset}  # or export {name}=<an interface between the machines>",
                variable.where,
            )


def _up(details: Details) -> list[dict[str, Any]]:
    return [port for port in details["infiniband"]["ports"] if port["state"] == "ACTIVE"]


def _described(up: list[dict[str, Any]]) -> str:
    layer = "RoCE" if up[0]["link_layer"] == "Ethernet" else "InfiniBand"
    rate = f" at {up[0]['rate']}" if up[0]["rate"] else ""
    return f"{len(up)} {layer} port{'s are' if len(up) > 1 else ' is'} up ({up[0]['device']}{rate})"


def _allows(value: str, device: str, port: str) -> bool:
    """NCCL_IB_HCA: as for interfaces, and an entry may name a port, `mlx5_0:1`."""
    mark = value[: len(value) - len(value.lstrip("^="))]
    entries = [entry.partition(":") for entry in value.lstrip("^=").split(",") if entry]
    of_port = [name for name, _, number in entries if not number or number == port]
    return _matches(mark + ",".join(of_port), device) if of_port else mark.startswith("^")


def _matches(value: str, name: str, *, is_exact: bool = False) -> bool:
    """Prefixes with commas between; `=` before them: exact names; `^`: all but those."""
    is_excluding = value.startswith("^")
    text = value.removeprefix("^")
    is_exact = is_exact or text.startswith("=")
    entries = [entry for entry in text.removeprefix("=").split(",") if entry]
    hit = name in entries if is_exact else name.startswith(tuple(entries))
    return hit != is_excluding
