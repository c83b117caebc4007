"""Xid and other error events of the cards, by NVML's event set on a thread of its own. Linux only; none from before.

The catalogue says what the numbers mean, and what to do: the meaning and the step that NVIDIA's gives for data centre
GPUs from Ampere on, in our own words.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rangewatch.collectors.gpu.devices import Device, parent_of
from rangewatch.collectors.gpu.nvml import EVENT_TYPES, TIMEOUT, XID_EVENT, Nvml, NvmlError, address
from rangewatch.core.guard import Guard
from rangewatch.recording.events import Events


class Xid(NamedTuple):
    """`resolution` is one of the keys of `ACTIONS`."""

    meaning: str
    resolution: str
    note: str = ""

    @property
    def action(self) -> str:
        """What to do, as a sentence or two."""
        return f"{ACTIONS[self.resolution]} {self.note}".strip()

    def data(self) -> dict[str, Any]:
        """For an event."""
        return {"meaning": self.meaning, "action": self.action, "resolution": self.resolution}


ACTIONS = {
    "ignore": "nothing now.",
    "restart_training": "restart the training.",
    "follow_other_xid": "look at the other Xid of the same time; alone, restart the fabric manager.",
    "reset_gpu": "take the node out and reset the GPU.",
    "reboot_node": "take the node out and reboot it.",
    "check_nvlink": "take the node out and check its NVLink and NVSwitch connections.",
    "check_ecc": "take the node out and reset the GPU, unless an Xid 94 came with it.",
    "check_power": "check the GPU's power cables and seating.",
    "update_software": "update the driver and the firmware.",
    "recovery_action": "do what the recovery action of this GPU says.",
    "contact_support": "take the node out and ask its vendor's support.",
}

_SUPPORT = "When it comes again, ask the vendor's support."
_CODE = "Usually a bug of the program: run it with CUDA_LAUNCH_BLOCKING=1, then under compute-sanitizer."
_NVLINK5 = "The unit that raised it and its status word, in the kernel's log, say how serious it is."

CATALOGUE = {
    8: Xid("the GPU stopped processing", "restart_training", _SUPPORT),
    11: Xid("a command stream was invalid or corrupted", "restart_training", _CODE),
    13: Xid("graphics engine exception: a kernel did something illegal", "restart_training", _CODE),
    25: Xid("a command stream was illegal", "restart_training", _CODE),
    31: Xid("MMU fault: a kernel used an address that is not mapped", "restart_training", _CODE),
    32: Xid("a command stream was invalid or corrupted on its way to the GPU", "restart_training", _CODE),
    37: Xid("driver firmware error", "ignore", _CODE),
    38: Xid("driver firmware watchdog", "ignore", _SUPPORT),
    39: Xid("copy engine exception", "restart_training", _SUPPORT),
    40: Xid("copy engine exception", "restart_training", _SUPPORT),
    41: Xid("copy engine exception", "restart_training", _SUPPORT),
    43: Xid("a program's work on the GPU was stopped after its own fault", "ignore", _SUPPORT),
    44: Xid("fault during a context switch", "ignore", _SUPPORT),
    45: Xid("a program's work was removed from the GPU because of an earlier error", "follow_other_xid"),
    46: Xid("the GPU stopped processing and did not react", "reset_gpu", _SUPPORT),
    48: Xid("double-bit ECC error: memory could not be corrected", "check_ecc", "Xid 171 or 172 says which memory."),
    54: Xid("the GPU's auxiliary power is not connected", "check_power", _SUPPORT),
    60: Xid("video processor exception", "restart_training"),
    62: Xid("an internal microcontroller halted", "reset_gpu", _SUPPORT),
    63: Xid("a bad row or page of memory was marked for replacement", "ignore", "A reset of the GPU activates it."),
    64: Xid("a bad row or page of memory could not be replaced", "reset_gpu", _SUPPORT),
    66: Xid("illegal access by the driver", "ignore"),
    67: Xid("illegal access by the driver", "ignore", _SUPPORT),
    68: Xid("video decoder exception", "restart_training", _SUPPORT),
    69: Xid("graphics engine class error", "restart_training", _CODE),
    74: Xid("NVLink error", "check_nvlink", _SUPPORT),
    78: Xid("a virtual GPU could not start", "update_software"),
    79: Xid(
        "the GPU has fallen off the bus", "reboot_node", "Then ask the vendor's support: power, seating or the card."
    ),
    80: Xid("corrupted data was sent to the GPU", "restart_training", _CODE),
    92: Xid("many corrected single-bit ECC errors", "ignore", _SUPPORT),
    93: Xid("the card's configuration memory is worn", "ignore", _SUPPORT),
    94: Xid("uncorrectable memory error, contained in one program", "restart_training", "Others on the GPU may go on."),
    95: Xid("uncorrectable memory error, not contained", "reset_gpu", "What was computed since may be wrong."),
    109: Xid("a context switch timed out", "reset_gpu", _SUPPORT),
    110: Xid("security fault", "reset_gpu"),
    119: Xid("the GPU's system processor (GSP) did not answer the driver in time", "reset_gpu", _SUPPORT),
    120: Xid("error of the GPU's system processor (GSP)", "reset_gpu", _SUPPORT),
    121: Xid("error on the link between chips (C2C)", "ignore", _SUPPORT),
    136: Xid("an NVLink could not be trained", "reset_gpu", "Then check the link's signal."),
    137: Xid(
        "NVLink privilege error: a remote access was refused", "ignore", "Look for a fault on the GPU at the other end."
    ),
    140: Xid("an uncorrectable ECC error escaped containment", "reset_gpu", _SUPPORT),
    141: Xid("CUDA fast path error", "ignore", _SUPPORT),
    143: Xid("the GPU could not be initialised", "reset_gpu", _SUPPORT),
    144: Xid("NVLink 5 error (SAW)", "check_nvlink", _NVLINK5),
    145: Xid("NVLink 5 error (RLW)", "check_nvlink", _NVLINK5),
    146: Xid("NVLink 5 error (TLW)", "check_nvlink", _NVLINK5),
    147: Xid("NVLink 5 error (TREX)", "check_nvlink", _NVLINK5),
    148: Xid("NVLink 5 error (NVLPW)", "check_nvlink", _NVLINK5),
    149: Xid("NVLink 5 error (NETIR)", "check_nvlink", _NVLINK5),
    150: Xid("NVLink 5 error (MSE)", "check_nvlink", _NVLINK5),
    154: Xid("the GPU's recovery action has changed", "recovery_action", "It follows another Xid."),
    155: Xid("NVLink error declared by software", "reset_gpu"),
    156: Xid("a faulty part of the GPU was marked to be left out", "reset_gpu", "The reset activates it."),
    157: Xid("a faulty part of the GPU could not be left out", "ignore", _SUPPORT),
    158: Xid("fatal timeout inside the GPU", "reset_gpu", _SUPPORT),
    160: Xid("a channel of memory was marked for repair", "ignore"),
    161: Xid("a channel of memory could not be marked for repair", "ignore", _SUPPORT),
    167: Xid("fatal PCIe timeout", "contact_support"),
    168: Xid("the GPU runs with less memory, after errors in a protected region", "contact_support"),
    171: Xid("details of an Xid 48: the error was in DRAM", "follow_other_xid"),
    172: Xid("details of an Xid 48: the error was in SRAM", "follow_other_xid"),
}

_ENGINES = {
    **dict.fromkeys((70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine exception"),
    **dict.fromkeys((82, *range(99, 106)), "JPEG engine exception"),
    **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), "video decoder exception"),
    **dict.fromkeys((86, 139), "optical flow engine exception"),
}

UNKNOWN = 999
"""NVML's own number for an Xid that it does not know."""


def xid(number: int) -> Xid:
    """What is known of Xid `number`; one that is not in the catalogue says so."""
    if number in _ENGINES:
        return Xid(_ENGINES[number], "restart_training", _SUPPORT)
    if number == UNKNOWN:
        return Xid("an error that NVML has no number for", "contact_support", "The kernel's log has it.")
    return CATALOGUE.get(number) or Xid("not in the catalogue of this version", "contact_support")


WAIT_MS = 500
"""Milliseconds of one wait: how long the end may have to wait for this thread."""

REPEAT_S = 60.0
"""Seconds in which the same event of the same card is counted, not sent again: one bad kernel can raise thousands."""

PAUSE_S = 1.0
"""Seconds of rest after an error."""

STOP_S = 2.0

_NO_INSTANCE = 0xFFFFFFFF


class XidWatch:
    """Waits for the events of `cards`, each with what messages call it."""

    def __init__(self, nvml: Nvml, cards: Sequence[tuple[Device, str]], events: Events) -> None:
        self._nvml, self._cards, self._events = nvml, cards, events
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rangewatch-xid", daemon=True)
        self._watched: dict[int, tuple[Device, str, int]] = {}
        """Card by the address of its handle, with its MIG instance."""
        self._reported_s: dict[tuple[int, int, int], float] = {}
        self._untold: dict[tuple[int, int, int], int] = {}

    @property
    def is_watching(self) -> bool:
        """It has not failed."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start to wait. Events before this are lost: NVML keeps none."""
        self._thread.start()

    def stop(self) -> bool:
        """End; whether the thread has ended in time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        Guard().run("xid", self._watch)

    def _watch(self) -> None:
        try:
            events = self._nvml.call("nvmlEventSetCreate")
        except NvmlError as error:
            self._events.add("gpu", f"Xid events are not recorded: {error}", {"reason": str(error)})
            self._stop.wait()  # or the collector would try, and tell, again and again
            return
        for device, label in self._cards:
            self._register(events, device, label)
        self._wait(events)
        self._free(events)

    def _register(self, events: Any, device: Device, label: str) -> None:
        try:
            parent = parent_of(self._nvml, device.handle)  # a MIG instance has no events of its own
            instance = _NO_INSTANCE if parent is None else self._nvml.call("nvmlDeviceGetGpuInstanceId", device.handle)
            handle = device.handle if parent is None else parent
            wanted = self._nvml.call("nvmlDeviceGetSupportedEventTypes", handle) & (XID_EVENT | sum(EVENT_TYPES))
            if not wanted & XID_EVENT:
                raise NvmlError(0, "this card reports none")
            self._nvml.call("nvmlDeviceRegisterEvents", handle, wanted, events)
            self._watched[address(handle)] = (device, label, instance)
        except NvmlError as error:
            self._events.add("gpu", f"{label}: Xid events are not recorded: {error}", {"uuid": device.uuid})

    def _wait(self, events: Any) -> None:
        if not self._watched:
            self._stop.wait()
        while not self._stop.is_set():
            try:
                event = self._nvml.call("nvmlEventSetWait_v2", events, WAIT_MS)
            except NvmlError as error:
                if error.is_driver:
                    return  # the collector makes a new watch when the driver is back
                if error.code != TIMEOUT:
                    # A lost card fails at once, each time, and the others are still to be heard.
                    self._stop.wait(PAUSE_S)
                continue
            self._emit(event)

    def _free(self, events: Any) -> None:
        try:
            self._nvml.call("nvmlEventSetFree", events)
        except NvmlError:
            return  # the driver went first

    def _emit(self, event: Any) -> None:
        device, label, instance = self._watched.get(address(event.device), (None, "a GPU of this host", _NO_INSTANCE))
        if _NO_INSTANCE not in (instance, event.gpuInstanceId) and instance != event.gpuInstanceId:
            return  # of somebody else's part of the card
        kind, number = int(event.eventType), int(event.eventData)
        repeats = self._repeats((address(event.device), kind, number if kind == XID_EVENT else 0))
        if repeats is None:
            return
        data: dict[str, Any] = {"uuid": "" if device is None else device.uuid, "repeats_untold": repeats}
        if kind == XID_EVENT:
            known = xid(number)
            message = f"{label}: Xid {number}, {known.meaning}. What to do: {known.action}"
            self._events.add("xid", message, {**data, "xid": number, **known.data()})
        else:
            meaning = EVENT_TYPES.get(kind, f"event type {kind:#x}")
            self._events.add("gpu", f"{label}: {meaning}", {**data, "event_type": kind, "event_data": number})

    def _repeats(self, key: tuple[int, int, int]) -> int | None:
        """How often it came since it was last sent; None when it is not to be sent now."""
        now_s = time.monotonic()
        if now_s - self._reported_s.get(key, float("-inf")) < REPEAT_S:
            self._untold[key] = self._untold.get(key, 0) + 1
            return None
        self._reported_s[key] = now_s
        return self._untold.pop(key, 0)
