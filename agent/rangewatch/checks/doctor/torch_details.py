"""What torch says of itself. Run as a program, it imports torch and prints that: a broken torch then ends only a child.

In training the loaded torch is read, and nothing is called that would start CUDA: a process that forks workers later
must not have it started behind its back. `torch.utils.collect_env` would not do: it has neither NCCL's version nor the
architectures nor capabilities and UUIDs of devices, and it runs a dozen programs.

DeepSpeed's compiled operators: which are installed, and which could be built when they are first used.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import warnings
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from rangewatch.checks.doctor.machine import Machine

TIMEOUT_S = 60.0  # importing torch from a network disk that is cold takes half a minute
MOST_DEVICES = 16

_MARK = "rangewatch torch details: "  # a site's start-up files print lines of their own, of JSON too

_NONE: dict[str, Any] = {
    "installed": False, "error": None, "version": None, "git": None, "cuda": None, "hip": None, "cudnn": None,
    "nccl": None, "arch_list": [], "cuda_available": None, "devices": [], "path": None,
}  # fmt: skip


def torch_details(machine: Machine, *, deep: bool) -> dict[str, Any]:
    """Versions, architectures and the devices that are visible; `error` where torch is there and cannot be imported."""
    return _asked(machine) if deep else loaded()


def loaded() -> dict[str, Any]:
    """Of the torch that this process has imported; `installed` False where it has not."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "version"):
        return dict(_NONE)
    cuda = getattr(torch, "cuda", None)
    is_started = cuda is not None and cuda.is_initialized()
    return _described(torch) | {"devices": _devices(torch) if is_started else []}


def _asked(machine: Machine) -> dict[str, Any]:
    output = machine.run([machine.python, "-m", __name__], TIMEOUT_S)
    for line in output.splitlines():
        if line.startswith(_MARK):
            return _NONE | dict(json.loads(line.removeprefix(_MARK)))
    lines = output.splitlines() or ["no output within a minute, or ended by a signal"]
    is_installed = find_spec("torch") is not None
    return _NONE | {"installed": is_installed, "error": lines[-1][:500] if is_installed else None}


def _described(torch: Any) -> dict[str, Any]:
    flags = _called(torch._C, "_cuda_getArchFlags") or ""
    return _NONE | {
        "installed": True,
        "version": str(torch.__version__),
        "git": getattr(torch.version, "git_version", None),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cudnn": _called(torch.backends.cudnn, "version"),
        "nccl": _nccl(torch),
        "arch_list": flags.split(),
        "path": str(getattr(torch, "__file__", "")),
    }


def _nccl(torch: Any) -> str | None:
    packed = _called(torch._C, "_nccl_version")
    if not isinstance(packed, int):
        return None
    return f"{packed >> 32}.{(packed >> 16) & 0xFFFF}.{packed & 0xFFFF}"


def _devices(torch: Any) -> list[dict[str, Any]]:
    count = min(torch.cuda.device_count(), MOST_DEVICES)
    return [_device(torch.cuda.get_device_properties(index)) for index in range(count)]


def _device(properties: Any) -> dict[str, Any]:
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": int(properties.total_memory),
        "uuid": str(getattr(properties, "uuid", "")),
    }


def _called(module: Any, name: str) -> Any:
    """What a function of torch returns; None where this build has no such function, or cannot say."""
    try:
        return getattr(module, name)()
    except (AttributeError, RuntimeError):
        return None


def main() -> int:
    """Print what this Python's torch says, as one line of JSON after a mark."""
    if find_spec("torch") is None:
        sys.stdout.write(f"{_MARK}{json.dumps(_NONE)}\n")
        return 0
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        torch: Any = importlib.import_module("torch")
        described = _described(torch) | {"cuda_available": bool(torch.cuda.is_available())}
        if described["cuda_available"]:
            described["devices"] = _devices(torch)
    # A driver that torch cannot use shows in a warning, and nowhere else.
    about_cuda = [str(each.message) for each in reported if re.search(r"CUDA|driver|NVML", str(each.message))]
    described["warnings"] = [" ".join(each.split())[:300] for each in about_cuda[:5]]
    sys.stdout.write(f"{_MARK}{json.dumps(described)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())


OPS_TIMEOUT_S = 90.0  # it imports torch and DeepSpeed, and tries some compilations

_LINE = re.compile(r"^(\w+) \.+ \[(YES|NO)\] \.+ \[(OKAY|NO)\]", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def deepspeed(machine: Machine, *, deep: bool) -> dict[str, Any]:
    """`version` (None: not installed) and, with `deep`, `ops`: by name whether it is `installed` and `compatible`."""
    report: dict[str, Any] = {"version": _version(), "ops": {}}
    if deep and report["version"]:
        output = machine.run(
            [machine.python, "-m", "deepspeed.env_report", "--hide_errors_and_warnings"], OPS_TIMEOUT_S
        )
        rows = _LINE.findall(_COLOUR.sub("", output))
        report["ops"] = {name: {"installed": yes == "YES", "compatible": ok == "OKAY"} for name, yes, ok in rows[:100]}
    return report


def _version() -> str | None:
    try:
        return metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        return None
