"""DeepSpeed's compiled operators: which are installed, and which could be built when they are first used."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

from rangewatch.doctor.machine import Machine

TIMEOUT_S = 90.0  # it imports torch and DeepSpeed, and tries some compilations

_LINE = re.compile(r"^(\w+) \.+ \[(YES|NO)\] \.+ \[(OKAY|NO)\]", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def deepspeed(machine: Machine, *, deep: bool) -> dict[str, Any]:
    """`version` (None: not installed) and, with `deep`, `ops`: by name whether it is `installed` and `compatible`."""
    found: dict[str, Any] = {"version": _version(), "ops": {}}
    if deep and found["version"]:
        output = machine.run([machine.python, "-m", "deepspeed.env_report", "--hide_errors_and_warnings"], TIMEOUT_S)
        rows = _LINE.findall(_COLOUR.sub("", output))
        found["ops"] = {name: {"installed": yes == "YES", "compatible": ok == "OKAY"} for name, yes, ok in rows[:100]}
    return found


def _version() -> str | None:
    try:
        return metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        return None
