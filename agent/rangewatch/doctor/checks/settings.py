"""A variable as torch or NCCL gets it: the process's own, or for NCCL one of its files; and how they read it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rangewatch.doctor.findings import Facts

_TRUE = {"1", "y", "yes", "t", "true"}


@dataclass(frozen=True)
class Setting:
    """A variable's value, and where it is set: its name, or a file's path and its name."""

    name: str
    value: str
    where: str

    @property
    def unset(self) -> str:
        """What to type so that it is not set."""
        return (
            f"unset {self.name}" if self.where == self.name else f"remove {self.name} from {self.where.split(':')[0]}"
        )

    @property
    def number(self) -> int:
        """As NCCL reads it: the digits at its beginning, else 0; so "true" is 0."""
        digits = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|\d+)", self.value)
        if digits is None:
            return 0
        return int(digits.group(1) + "1") * int(digits.group(2), 16 if "x" in digits.group(2).lower() else 10)

    @property
    def is_true(self) -> bool:
        """As torch reads a switch."""
        return self.value.strip().lower() in _TRUE


def setting(facts: Facts, name: str) -> Setting | None:
    """The variable, wherever it is set; None where it is not set, or empty."""
    if value := facts["variables"].get(name):
        return Setting(name, value, name)
    for path, settings in facts["nccl_files"].items():
        if name.startswith("NCCL_") and (value := settings.get(name)):
            return Setting(name, value, f"{path}: {name}")
    return None


def ranks_here(facts: Facts) -> int:
    """How many ranks the launcher started on this machine; 1 where it does not say."""
    value = facts["variables"].get("LOCAL_WORLD_SIZE", "")
    return max(1, int(value)) if value.isdecimal() else 1


def builds_for_cuda(facts: Facts) -> bool:
    """Whether anybody here would compile for CUDA: not with a torch that was built without it."""
    return facts["torch"]["cuda"] is not None or not facts["torch"]["installed"]


def version(text: object) -> tuple[int, ...]:
    """The numbers of a version: "13.0" is (13, 0), None is ()."""
    found = re.match(r"\d+(?:\.\d+)*", text) if isinstance(text, str) else None
    return tuple(int(part) for part in found.group().split(".")) if found else ()
