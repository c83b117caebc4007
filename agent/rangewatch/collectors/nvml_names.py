"""Names of NVML's numbers: bits of clocks event reasons, policies of violation times, states."""

from __future__ import annotations

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
