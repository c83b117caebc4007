"""GPU health: a row a second for each card of this rank, by NVML, without root and without starting CUDA.

All talk with NVML is on a thread of its own: a driver whose card hangs may keep a call for minutes, and then the other
collectors go on and the silence is told as a lost card.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rangewatch.collectors.answering import Answering
from rangewatch.collectors.base import Told
from rangewatch.collectors.gpu_card import Card
from rangewatch.collectors.gpu_devices import Device, cuda, devices_of, has_launcher_said
from rangewatch.collectors.nvml import LIBRARY_NOT_FOUND, TIMEOUT, Nvml, NvmlError
from rangewatch.collectors.xid import XidWatch
from rangewatch.options import Options
from rangewatch.records import RankInfo, Samples

SLOW_EVERY_S = 30.0
"""Seconds between two readings of counters and links, and between two tries to reach a lost card or driver."""

PATIENCE_S = 1.0
"""Seconds that the collectors' thread waits for NVML: a look takes milliseconds, the very first one a second or two."""

SILENCE_S = 10.0
"""Seconds without an answer after which the cards count as lost: calls of a few seconds happen in a healthy run."""

STOP_S = 1.0
"""Seconds that the end waits for NVML, which may never answer."""


class GpuCollector:
    """The collector `gpu`."""

    name = "gpu"

    def __init__(self, options: Options, info: RankInfo, environment: Mapping[str, str] = os.environ) -> None:
        self._info, self._environment = info, environment
        self._nvml: Nvml | None = None
        self._thread: Answering[list[Samples]] = Answering("rangewatch-nvml")
        self._xid: XidWatch | None = None
        self._cards: list[Card] = []
        self._left: list[Card] = []
        """Cards that have turned out to be none of this rank's, until their last row says so."""
        self._reason = ""
        """Why there is no card, as last told."""
        self._is_open = self._is_given_up = self._is_silence_told = False
        self._due_s = float("-inf")
        self._asked_s = 0.0
        self._told: Told = _nobody

    def start(self, told: Told) -> None:
        """Load `pynvml`; that it is not installed is told once."""
        self._told = told
        try:
            self._nvml = Nvml()
        except ImportError as error:
            hint = "install rangewatch[gpu] (the package nvidia-ml-py) to record it"
            self._give_up(f"GPU health is not recorded: {hint} ({error})")

    def collect(self, step: int) -> Sequence[Samples]:
        """One row for each card, with what NVML last said."""
        if self._nvml is None or self._is_given_up or not self._is_wanted():
            return ()
        if not self._thread.is_busy:
            self._asked_s, self._is_silence_told = time.monotonic(), False
        try:
            return self._thread.ask(partial(self._look, self._nvml, step), PATIENCE_S)
        except TimeoutError:
            return self._unanswered(step)

    def stop(self) -> None:
        """End the threads, and let go of NVML unless a call is stuck in it."""
        has_ended = self._xid is None or self._xid.stop()
        if self._thread.stop(STOP_S) and has_ended and self._nvml is not None:
            self._nvml.close()

    def _is_wanted(self) -> bool:
        """Training on a CPU opens no driver, unless the launcher gave this rank a card or CUDA runs all the same."""
        return self._info.device != "cpu" or has_launcher_said(self._environment) or cuda() is not None

    def _unanswered(self, step: int) -> list[Samples]:
        silent_s = time.monotonic() - self._asked_s
        if silent_s < SILENCE_S:
            return []
        if not self._is_silence_told:  # once a question: its answer may come between here and the next line
            self._is_silence_told = True
            if not self._cards:
                self._tell_reason(f"no GPU is watched: the driver has not answered for {silent_s:.0f} s")
            for card in self._cards:
                card.lose(NvmlError(TIMEOUT, f"the driver has not answered for {silent_s:.0f} s"))
        return [card.absent(step) for card in self._cards]

    def _look(self, nvml: Nvml, step: int) -> list[Samples]:
        """On NVML's own thread."""
        is_slow = time.monotonic() >= self._due_s
        if is_slow:
            self._due_s = time.monotonic() + SLOW_EVERY_S
        if not self._is_open and not (is_slow and self._open(nvml)):
            return [card.absent(step) for card in self._cards]
        if is_slow or (cuda() is not None and any(card.device.mapped_by != "torch" for card in self._cards)):
            self._find(nvml)
        found = [card.look(step, is_slow=is_slow or card.was_silent) for card in self._cards]
        self._is_open = not any(card.lost is not None and card.lost.is_driver for card in self._cards)
        left, self._left = self._left, []
        return [*(card.not_watched(step) for card in left), *found]

    def _open(self, nvml: Nvml) -> bool:
        if self._xid is not None:
            self._xid.stop()  # its event set ends with the connection
            self._xid = None
        try:
            nvml.open()
        except NvmlError as error:
            if error.code == LIBRARY_NOT_FOUND:
                self._give_up(f"GPU health is not recorded: {error}")
            else:
                self._tell_reason(f"GPU health is not recorded: {error}")
            return False
        self._is_open = True
        return True

    def _find(self, nvml: Nvml) -> None:
        """Whose cards these are may change: CUDA has started, or uses another card."""
        try:
            self._watch(nvml, self._devices(nvml))
        except NvmlError as error:
            if not self._cards:  # else the cards tell
                self._tell_reason(f"no GPU is watched: {error}")

    def _devices(self, nvml: Nvml) -> list[Device]:
        devices = devices_of(nvml, self._info.local_rank, self._environment)
        known = [card.device for card in self._cards]
        # Torch holds no memory for a while (`empty_cache`, offloading): what it has said is better than a guess.
        is_guess = _is_by_torch(known) and not _is_by_torch(devices)
        return known if is_guess else devices

    def _watch(self, nvml: Nvml, devices: Sequence[Device]) -> None:
        known = {card.device.uuid: card for card in self._cards}
        cards = [known.get(device.uuid) or Card(nvml, device, self._told) for device in devices]
        for card, device in zip(cards, devices, strict=True):
            if card.lost is None and device[2:] != card.device[2:]:
                card.adopt(device)
        if cards != self._cards or self._xid is None or not self._xid.is_watching:
            self._watch_xid(nvml, cards)
        self._left += [card for card in self._cards if card not in cards]
        self._cards, self._reason = cards, ""

    def _watch_xid(self, nvml: Nvml, cards: list[Card]) -> None:
        if self._xid is not None:
            self._xid.stop()
        self._xid = XidWatch(nvml, [(card.device, card.label) for card in cards], self._told)
        self._xid.start()

    def _tell_reason(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            self._told("gpu", reason, {"reason": reason})

    def _give_up(self, reason: str) -> None:
        self._is_given_up = True
        self._tell_reason(reason)


def _is_by_torch(devices: Sequence[Device]) -> bool:
    return any(device.mapped_by == "torch" for device in devices)


def _nobody(kind: str, message: str, data: dict[str, Any]) -> None:
    pass
