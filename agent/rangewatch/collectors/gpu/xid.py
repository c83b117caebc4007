"""Xid and other error events of the cards, by NVML's event set on a thread of its own. Linux only; none from before."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from rangewatch.collectors.base import Emit
from rangewatch.collectors.gpu.devices import Device, parent_of
from rangewatch.collectors.gpu.nvml import EVENT_TYPES, TIMEOUT, XID_EVENT, Nvml, NvmlError, address
from rangewatch.collectors.gpu.xid_catalogue import xid
from rangewatch.core.guard import Guard

WAIT_MS = 500
"""Milliseconds of one wait: how long the end may have to wait for this thread."""

REPEAT_S = 60.0
"""Seconds in which the same event of the same card is counted, not told again: one bad kernel can raise thousands."""

PAUSE_S = 1.0
"""Seconds of rest after an error."""

STOP_S = 2.0

_NO_INSTANCE = 0xFFFFFFFF


class XidWatch:
    """Waits for the events of `cards`, each with what messages call it."""

    def __init__(self, nvml: Nvml, cards: Sequence[tuple[Device, str]], emit: Emit) -> None:
        self._nvml, self._cards, self._emit_event = nvml, cards, emit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rangewatch-xid", daemon=True)
        self._watched: dict[int, tuple[Device, str, int]] = {}
        """Card by the address of its handle, with its MIG instance."""
        self._told_s: dict[tuple[int, int, int], float] = {}
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
            self._emit_event("gpu", f"Xid events are not recorded: {error}", {"reason": str(error)})
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
            self._emit_event("gpu", f"{label}: Xid events are not recorded: {error}", {"uuid": device.uuid})

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
            self._emit_event("xid", message, {**data, "xid": number, **known.data()})
        else:
            meaning = EVENT_TYPES.get(kind, f"event type {kind:#x}")
            self._emit_event("gpu", f"{label}: {meaning}", {**data, "event_type": kind, "event_data": number})

    def _repeats(self, key: tuple[int, int, int]) -> int | None:
        """How often it came untold since it was last told; None when it is not to be told now."""
        now_s = time.monotonic()
        if now_s - self._told_s.get(key, float("-inf")) < REPEAT_S:
            self._untold[key] = self._untold.get(key, 0) + 1
            return None
        self._told_s[key] = now_s
        return self._untold.pop(key, 0)
