"""The end of a process that has collectives under way.

gloo tells us of an end by calling Python from a thread of its own. Once the interpreter is gone that call aborts the
process (or, from Python 3.14 on, hangs it). Torch waits for those collectives anyway, when it destroys the group a
moment later: the same wait, done while there is an interpreter, costs nothing.
"""

from __future__ import annotations

import atexit
import time
from typing import TYPE_CHECKING
from weakref import WeakSet

from rangewatch.guard import logger

if TYPE_CHECKING:
    from rangewatch.collectors.collectives_ledger import Ledger

LONGEST_S = 1900.0
"""Seconds of that wait: gloo gives a collective up after its timeout, half an hour by default."""

SAID_AFTER_S = 5.0
POLL_S = 0.02
LET_GO_S = 0.05
"""Seconds for gloo's thread to let go of the last callback, for which it needs the interpreter once more."""

ledgers: WeakSet[Ledger] = WeakSet()
"""Those whose collectives may be under way. Who waits for a callback is held by it."""


@atexit.register
def _wait() -> None:
    began_s, is_said = time.monotonic(), False
    while (count := sum(each.under_way() for each in list(ledgers))) and time.monotonic() - began_s < LONGEST_S:
        if not is_said and time.monotonic() - began_s > SAID_AFTER_S:
            is_said = True
            logger.warning("rangewatch: the process ends when gloo's %d collectives have, as torch asks for", count)
        time.sleep(POLL_S)
    if any(each.begun_count for each in list(ledgers)):
        time.sleep(LET_GO_S)
