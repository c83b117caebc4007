"""The one door to NVIDIA's management library (the module `pynvml` of the package nvidia-ml-py).

Nothing here needs root, and nothing starts CUDA. What NVML raises comes out as `NvmlError`, whose code is NVML's own:
the numbers are part of its ABI, while their names and its functions differ between versions of `pynvml`.

Names of NVML's numbers: bits of clocks event reasons, policies of violation times, states.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Sequence
from typing import Any

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST = 9, 10, 12, 13, 15
LIB_RM_VERSION_MISMATCH, UNKNOWN = 18, 999

_ABSENT = frozenset({NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, 22, 25, 26})
"""The value does not exist here. 22: a virtual GPU without ECC; 25, 26: a structure or call that it lacks."""

_DRIVER = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})

_TEXTS = {
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not on this host: no NVIDIA driver, or a container started without GPUs",
    DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    LIB_RM_VERSION_MISMATCH: "the driver was replaced while it ran: its kernel module and its library differ; reboot",
    NO_PERMISSION: "this user or container may not look at the GPU",
    GPU_IS_LOST: "the GPU is lost: it fell off the bus or cannot be reached",
    UNINITIALIZED: "the connection to the driver is gone",
}

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of `nvmlValue_t` by value type."""


class NvmlError(Exception):
    """NVML did not answer as asked: `code` is its return code, the text says it in words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(_TEXTS.get(code, text))
        self.code = code

    @property
    def is_absent(self) -> bool:
        """The value is not supported here, which is no fault."""
        return self.code in _ABSENT

    @property
    def is_driver(self) -> bool:
        """The driver is gone, and with it every handle."""
        return self.code in _DRIVER

    @property
    def is_gone(self) -> bool:
        """No other question would be answered either."""
        return self.is_driver or self.code == GPU_IS_LOST


class Nvml:
    """NVML, initialised once. Its calls may come from any thread and let go of the GIL."""

    def __init__(self) -> None:
        """Raises ImportError where nvidia-ml-py is not installed."""
        self.module: Any = importlib.import_module("pynvml")
        self._is_open = False

    def open(self) -> None:
        """Initialise NVML, anew where it was. Raises NvmlError."""
        self.close()
        self.call("nvmlInit")
        self._is_open = True

    def close(self) -> None:
        """Let go of NVML. Whoever else uses it in this process keeps it: it counts its users."""
        if self._is_open:
            self._is_open = False
            try:
                self.call("nvmlShutdown")
            except NvmlError:
                return  # the driver went first

    def call(self, function: str, *arguments: Any) -> Any:
        """What the function returns. Raises NvmlError, also where this version of `pynvml` has no such function."""
        body = getattr(self.module, function, None)
        if body is None:
            raise NvmlError(FUNCTION_NOT_FOUND, f"{function} is not in this version of nvidia-ml-py")
        try:
            return body(*arguments)
        except self.module.NVMLError as error:
            raise NvmlError(int(error.value), f"{function}: {error}") from error


class Reader:
    """Reads numbers off one handle: NaN for what is not supported, and a count of what was answered.

    `error` is the last answer that was neither a value nor "not supported".
    """

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self.answered = 0
        self.error: NvmlError | None = None
        self._absent: set[tuple[Any, ...]] = set()

    def begin(self, *, forget: bool) -> None:
        """Count from here on; `forget`: ask again for what was not supported."""
        self.answered, self.error = 0, None
        if forget:
            self._absent.clear()

    def value(self, function: str, *arguments: Any) -> Any:
        """What the function returns, None where there is none. Raises NvmlError when the card or driver is gone."""
        key = (function, *arguments)
        if key in self._absent:
            return None
        try:
            answer = self.nvml.call(function, self.handle, *arguments)
        except NvmlError as error:
            self._note(error, key)
            return None
        self.answered += 1
        return answer

    def is_absent(self, function: str, *arguments: Any) -> bool:
        """Whether the function has said that there is no such value here; False where it only failed."""
        return (function, *arguments) in self._absent

    def filled(self, function: str, structure: Any) -> bool:
        """Whether the function filled `structure`, which is new each time and so no part of what is remembered."""
        if (function,) in self._absent:
            return False
        try:
            self.nvml.call(function, self.handle, structure)
        except NvmlError as error:
            self._note(error, (function,))
            return False
        self.answered += 1
        return True

    def number(self, function: str, *arguments: Any, scale: float = 1.0) -> float:
        """The same as a float times `scale`, NaN where there is none."""
        value = self.value(function, *arguments)
        return math.nan if value is None else float(value) * scale

    def text(self, function: str, *arguments: Any) -> str | None:
        """The same as text: old versions of `pynvml` return bytes."""
        answer = self.value(function, *arguments)
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def fields(self, ids: Sequence[Any]) -> list[float]:
        """Field values by id, or by (id, scope), in one call; NaN where one is not supported."""
        values = None if ("fields", *ids) in self._absent else self._field_values(ids)
        return [math.nan] * len(ids) if values is None else [self._field(each) for each in values]

    def _field_values(self, ids: Sequence[Any]) -> Any:
        try:
            return self.nvml.call("nvmlDeviceGetFieldValues", self.handle, list(ids))
        except NvmlError as error:
            self._note(error, ("fields", *ids))
            return None

    def _field(self, field: Any) -> float:
        if field.nvmlReturn:
            self._note(NvmlError(int(field.nvmlReturn), f"field {field.fieldId}"), None)
            return math.nan
        self.answered += 1
        member = _MEMBERS[field.valueType] if field.valueType < len(_MEMBERS) else "ullVal"
        if not hasattr(field.value, member):  # versions before 12.5x know no signed int
            return float(ctypes.c_int(field.value.uiVal).value)
        return float(getattr(field.value, member))

    def _note(self, error: NvmlError, key: tuple[Any, ...] | None) -> None:
        if error.is_gone:
            raise error
        if not error.is_absent:
            self.error = error
        elif key is not None:
            self._absent.add(key)


def address(handle: Any) -> int:
    """What tells two handles apart: each call gives a new object for the same card."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


CLOCKS_EVENT_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}

CHOSEN = 0x1 | 0x2 | 0x100
"""Reasons that slow nothing anybody wants faster: an idle card, and clocks that somebody has set."""

THROTTLE_REASONS = {bit: name for bit, name in CLOCKS_EVENT_REASONS.items() if not bit & CHOSEN}

THROTTLE_MASK = sum(THROTTLE_REASONS)

VIOLATIONS = {
    "power": 0,
    "thermal": 1,
    "sync_boost": 2,
    "board_limit": 3,
    "low_utilization": 4,
    "reliability": 5,
    "app_clocks": 10,
    "base_clocks": 11,
}
"""`nvmlPerfPolicyType_t`. The last two are totals: time below the clocks asked for, and below the base clocks."""

RECOVERY_ACTIONS = {
    0: "none",
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer traffic",
    4: "drain the node, then reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}

FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}

EVENT_TYPES = {
    0x2: "double-bit ECC error",
    0x400: "a bad row of its memory has been retired",
    0x800: "a bad row of its memory could not be retired",
    0x1000: "poisoned data was read, which killed no more than its process",
    0x2000: "poisoned data was read, and the GPU must be reset",
    0x4000: "the GPU is not available",
    0x8000: "its recovery action has changed",
}
"""Events beside Xid. None is single: Xid comes with most of them, but not from every driver."""

XID_EVENT = 0x8


def about_names() -> dict[str, dict[str, str]]:
    """The tables that columns refer to by number, with numbers as text: JSON has no other keys."""
    return {
        "throttle_reasons": _as_text(THROTTLE_REASONS),
        "clocks_event_reasons": _as_text(CLOCKS_EVENT_REASONS),
        "recovery_action": _as_text(RECOVERY_ACTIONS),
        "fabric_state": _as_text(FABRIC_STATES),
    }


def _as_text(names: dict[int, str]) -> dict[str, str]:
    return {str(number): name for number, name in names.items()}
